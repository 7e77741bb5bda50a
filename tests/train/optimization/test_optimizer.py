import pytest
import torch
from torch import nn

from train.distributed.environment import DistributedEnvironment
from train.optimization.optimizer import build_optimizer, set_lr
from train.options import Options
from train.strategies.strategy import Strategy


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_optimizer_of_a_graph_is_fused_and_reads_its_learning_rate_on_the_device(kind):
    options = Options(optimizer=kind)
    strategy = Strategy(options, DistributedEnvironment(), torch.device("cpu"))
    optimizer = build_optimizer(strategy, nn.Linear(2, 2).parameters(), fused=True, graphs=True)
    [group] = optimizer.param_groups
    assert group["fused"] is True
    assert (group["lr"].dtype, group["lr"].device) == (torch.float32, strategy.device)
    assert group.get("capturable") is (None if kind == "sgd" else True)
    before = group["lr"]
    set_lr(optimizer, 0.25)
    assert float(group["lr"]) == 0.25
    assert group["lr"] is before
