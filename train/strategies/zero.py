"""ZeRO stage 1: data parallel, and each rank keeps the optimizer's state of its part of the weights alone."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from train.strategies.ddp import DataParallel


class Zero1(DataParallel):
    """DistributedDataParallel with torch's ZeroRedundancyOptimizer."""

    name = "zero1"
    sharded = True
    times_communication = False  # the weights are sent within the optimizer's step

    def optimizer(
        self, kind: type[torch.optim.Optimizer], weights: Iterable[nn.Parameter], settings: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Build the optimizer, of which each rank updates its part of the weights."""
        return ZeroRedundancyOptimizer(weights, optimizer_class=kind, **settings)

    def own_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer of this rank's part of the weights."""
        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        local_optimizer: torch.optim.Optimizer = optimizer.optim
        return local_optimizer
