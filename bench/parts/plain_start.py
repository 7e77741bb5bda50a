"""The script that a person would write for the built-in job's default: digits, a small CNN, DDP, two epochs.

torchrun --nproc-per-node 1 bench/parts/plain_start.py MODEL-FILE
"""

import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, TRAINING = 2, 64, 1438


def main(path: str) -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(digits.target)
    training = TensorDataset(images[:TRAINING], labels[:TRAINING])
    validation = TensorDataset(images[TRAINING:], labels[TRAINING:])
    sampler = DistributedSampler(training)
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
    ).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        for batch, answers in DataLoader(training, BATCH, sampler=sampler):
            optimizer.zero_grad()
            loss = cross_entropy(model(batch.to(device)), answers.to(device))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(
                (model(batch.to(device)).argmax(1).cpu() == answers).sum().item()
                for batch, answers in DataLoader(validation, 1024)
            )
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right / len(validation):.4f}", flush=True)
    torch.save(network.state_dict(), path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
