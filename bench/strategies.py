"""Compare the built-in job's step under each strategy with the plainest loop of the same PyTorch parts.

The model is `gpt-10m` on bytes. Two ranks on this machine take steps of both loops in turns, some of one and then
equally many of the other. Prints the medians of tokens a second, and the median of the ratios. Exits 1 if a strategy
has less than 0.97 of the plain loop's tokens a second.

    python bench/strategies.py [PAIRS [STEPS [STRATEGY ...]]]
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from train.distributed.environment import read_environment
from train.models.gpt import build_gpt
from train.models.gpt_sizes import GPT_SIZES
from train.optimization.optimizer import build_optimizer
from train.options import Options
from train.reporting.progress import TrainingProgress
from train.reporting.report import Report
from train.reporting.step_logger import StepLogger
from train.reporting.timing import StepTimer
from train.strategies.choice import build_strategy
from train.train_step import ModelWithLoss, TrainStep

LIMIT = 0.97
RANKS, SEQ_LEN, BATCH, MICRO_BATCHES, VOCABULARY = 2, 64, 8, 4, 257
STRATEGIES = ("ddp", "fsdp", "zero1", "tp", "pp")
WARM_UP = 3
RESULT = "result: "
Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[[int], None]
"""Takes that number of steps."""


def main() -> int:
    pairs, steps = (sys.argv[1:3] + ["9", "4"][len(sys.argv[1:3]) :])[:2]
    missed = 0
    print(f"gpt-10m, {RANKS} ranks on this machine, sequences of {SEQ_LEN}, {BATCH} a rank:")
    for strategy in sys.argv[3:] or STRATEGIES:
        ours, plain, ratio = measure(strategy, pairs, steps)
        missed += ratio < LIMIT
        print(f"  {strategy:6} {ours:7.0f} tokens/s, {ratio:.3f} of the plain loop's {plain:.0f}")
    print(f"  the limit is {LIMIT}: {'missed' if missed else 'kept'}")
    return int(missed > 0)


def measure(strategy: str, pairs: str, steps: str) -> tuple[float, float, float]:
    """Return the tokens a second of both loops, and the median of their ratios."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    done = subprocess.run(
        [*launch, __file__, "--ranks", strategy, pairs, steps],
        check=False,
        text=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith(RESULT)), None)
    if line is None:
        raise SystemExit(f"{strategy} did not run:\n{done.stdout}{done.stderr}")
    ours, plain, ratio = json.loads(line.removeprefix(RESULT))
    return ours, plain, ratio


def rank_main(strategy: str, pairs: int, steps: int) -> None:
    """Measure both loops on a rank."""
    dist.init_process_group("gloo")
    try:
        tokens = batches()
        loops = {"ours": ours(strategy, tokens), "plain": plain(strategy, tokens)}
        for loop in loops.values():
            loop(WARM_UP)
        times: dict[str, list[float]] = {name: [] for name in loops}
        for pair in range(pairs):
            for name in sorted(loops, reverse=pair % 2 == 1):
                dist.barrier()
                began = time.perf_counter()
                loops[name](steps)
                dist.barrier()
                times[name].append(time.perf_counter() - began)
        replicas = 1 if strategy in ("tp", "pp") else RANKS
        moved = steps * replicas * BATCH * SEQ_LEN
        ratios = [before / now for before, now in zip(times["plain"], times["ours"], strict=True)]
        rates = [moved / statistics.median(times[name]) for name in ("ours", "plain")]
        if dist.get_rank() == 0:
            print(RESULT + json.dumps([*rates, statistics.median(ratios)]), flush=True)
    finally:
        dist.destroy_process_group()


def batches() -> Batch:
    """Return tokens [b, n], and the token after each."""
    text = torch.randint(VOCABULARY, (BATCH, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def ours(strategy: str, batch: Batch) -> Loop:
    """Return the built-in job's loop, with its clocks and its report."""
    options = Options(model="gpt-10m", dataset="text", strategy=strategy, wrap="transformer", lr=1e-3)  # type: ignore[arg-type]
    env, device = read_environment(), torch.device("cpu")
    distributed = build_strategy(options, env, device)
    number = MICRO_BATCHES if strategy == "pp" else 1
    model = build_gpt(VOCABULARY, GPT_SIZES["gpt-10m"], 0)
    distributed.shard(model, batch[0][:1], micro_batches=number, micro_batch_size=BATCH // number)
    optimizer = build_optimizer(distributed, model.parameters(), fused=True)
    timer, progress = StepTimer(device), TrainingProgress(device)
    wrapped = distributed.wrap(ModelWithLoss(model, options), steps=100, on_ready=timer.gradients_ready)
    step = TrainStep(
        options, wrapped, optimizer, timer, distributed, batch_size=BATCH, micro_batch_size=BATCH // number
    )
    log = StepLogger(
        Report(path=None, env=env, options=options), timer, device, 10, counts=distributed.counts
    )

    def take(steps: int) -> None:
        for _ in range(steps):
            timer.start()
            timer.data_ready(BATCH)
            loss, _ = step(*batch)
            timer.end()
            progress.add_step(BATCH, loss.double() * BATCH, consumed=0, counts=distributed.counts)
            log.add(progress, loss)

    return take


def plain(strategy: str, batch: Batch) -> Loop:
    """The same with PyTorch alone."""
    model: nn.Module = build_gpt(VOCABULARY, GPT_SIZES["gpt-10m"], 0)
    mesh = init_device_mesh("cpu", (RANKS,))
    inputs, labels = batch
    if strategy == "pp":
        return plain_pipeline(model, batch)
    if strategy in ("ddp", "zero1"):
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif strategy == "tp":
        for name, block in model.named_children():
            if name.startswith("block"):
                columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
                styles: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
                styles |= {name: RowwiseParallel() for name in ("attention.output", "mlp.down")}
                parallelize_module(block, mesh, styles)
    else:
        for name, block in model.named_children():
            if name.startswith("block"):
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer: torch.optim.Optimizer
    if strategy == "zero1":
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3, fused=True
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=None if strategy == "tp" else True)

    def take(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            logits = model(inputs)
            loss = cross_entropy(logits.flatten(0, -2), labels.flatten())
            loss.backward()
            optimizer.step()

    return take


def plain_pipeline(model: nn.Module, batch: Batch) -> Loop:
    """Two stages of three blocks each; the embedding's and the head's weight is one, and its gradients are added."""
    rank = dist.get_rank()
    parts = list(model.children())
    stage_module = nn.Sequential(*(parts[:4] if rank == 0 else parts[4:]))
    stage = PipelineStage(stage_module, rank, RANKS, torch.device("cpu"))

    def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits.flatten(0, -2), labels.flatten()) / MICRO_BATCHES

    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of, scale_grads=False)
    optimizer = torch.optim.Adam(stage_module.parameters(), lr=1e-3, fused=True)
    tied = parts[0].token.weight if rank == 0 else parts[-1].weight
    assert isinstance(tied, nn.Parameter)
    inputs, labels = batch

    def take(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=labels, losses=[])
            assert tied.grad is not None
            dist.all_reduce(tied.grad)
            optimizer.step()

    return take


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ranks"]:
        rank_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
