"""A script for `gpuctl train`: it tells its metrics, leaves an artifact, and goes on from its checkpoint.

    gpuctl train docs/examples/line.py --epochs 3
    gpuctl train --resume -- --epochs 6

It imports nothing of gpuctl, and runs under plain torchrun as well.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
device = (
    torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
)
if device.type == "cuda":
    torch.cuda.set_device(device)

run_dir = Path(os.environ.get("GPUCTL_RUN_DIR", "."))
checkpoint = run_dir / "checkpoints" / "last.pt"
metrics = Path(os.environ.get("GPUCTL_METRICS", os.devnull)).open("a", buffering=1)  # a line at once

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
truth = torch.arange(8.0, device=device)

begin = 0
if checkpoint.exists():  # left by an earlier run; gpuctl puts it on every node
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["epoch"]

step = 0
for epoch in range(begin, options.epochs):
    chance = torch.Generator().manual_seed(epoch * world_size + rank)
    for _ in range(50):
        inputs = torch.randn(32, 8, generator=chance).to(device)
        loss = (model(inputs)[:, 0] - inputs @ truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            counts = {"step": step, "epoch": epoch + 1, "samples": step * 32, "time": time.time()}
            print(json.dumps({"loss": loss.item(), **counts}), file=metrics)
    if rank == 0:
        print(f"epoch {epoch + 1}: loss {loss.item():.6f}", flush=True)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)  # whole or not there

if rank == 0:
    (run_dir / "artifacts").mkdir(parents=True, exist_ok=True)
    torch.save(model.module.state_dict(), run_dir / "artifacts" / "line.pt")
dist.barrier()
dist.destroy_process_group()
metrics.close()
os._exit(0)  # on CPUs, torch's gloo now and then aborts a process that ends by itself
