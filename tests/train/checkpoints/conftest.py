"""Fixtures: a small network with its optimizer's state, and its checkpoint in parts from one process."""

import pytest
import torch
from torch import nn

from train.checkpoints import files, parts
from train.distributed.environment import DistributedEnvironment
from train.options import Options
from train.strategies.strategy import Strategy

STRATEGY = Strategy(Options(), DistributedEnvironment(), torch.device("cpu"))


def _network_and_optimizer(seed=0, width=3):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    network(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    return network, optimizer


def _write(folder, step, network, optimizer):
    path = files.path_of(folder, step)
    path.mkdir(parents=True)
    rest = files.serialized({"steps": step})
    about = {"step": step, "world_size": 1}
    parts.save(path, parts.tensors(STRATEGY, network, optimizer), rest, about, None).result()
    return path


def _write_whole(folder, step, network, _optimizer):
    data = files.serialized({"model": network.state_dict(), "steps": step})
    return files.save(folder, data, step=step, keep=1)


@pytest.fixture
def strategy():
    return STRATEGY


@pytest.fixture
def network_and_optimizer():
    """Makes a network and its optimizer, after a step; `seed` and `width` tell several apart."""
    return _network_and_optimizer


@pytest.fixture
def write_whole():
    """Writes a checkpoint in one file into a folder."""
    return _write_whole


@pytest.fixture
def write_parts():
    """Writes a checkpoint in parts into a folder, and returns where its files are."""
    return _write
