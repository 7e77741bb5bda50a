import pytest
import torch
from torch import nn

from train.distributed.environment import DistributedEnvironment
from train.optimization.lr_schedule import set_lr
from train.optimization.optimizer import build_optimizer
from train.options import Options
from train.strategies.strategy import Strategy


@pytest.mark.parametrize(
    ("changed", "fused", "of_a_tensor"),
    [
        ({}, True, False),
        ({"compile": True}, None, True),
        ({"compile": True, "precision": "bf16"}, None, True),
        ({"compile": True, "precision": "fp16"}, True, False),
    ],
)
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_optimizer_has_a_tensor_learning_rate_when_compiled(kind, changed, fused, of_a_tensor):
    """And the compiler fuses it: torch's own fused operations would be left out of the graph."""
    options = Options(optimizer=kind, **changed)
    strategy = Strategy(options, DistributedEnvironment(), torch.device("cpu"))
    optimizer = build_optimizer(strategy, nn.Linear(2, 2).parameters(), fused=True)
    [group] = optimizer.param_groups
    assert group["fused"] is fused
    before = group["lr"]
    assert isinstance(before, torch.Tensor) is of_a_tensor
    set_lr(optimizer, 0.25)
    assert float(group["lr"]) == 0.25
    assert (group["lr"] is before) is of_a_tensor


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_optimizer_of_a_graph_is_fused_and_reads_its_learning_rate_on_the_device(kind):
    options = Options(optimizer=kind)
    strategy = Strategy(options, DistributedEnvironment(), torch.device("cpu"))
    optimizer = build_optimizer(strategy, nn.Linear(2, 2).parameters(), fused=True, graphs=True)
    [group] = optimizer.param_groups
    assert group["fused"] is True
    assert (group["lr"].dtype, group["lr"].device) == (torch.float32, strategy.device)
    assert group.get("capturable") is (None if kind == "sgd" else True)
