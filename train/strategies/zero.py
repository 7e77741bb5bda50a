"""ZeRO stage 1: data parallel, and each rank keeps the optimizer's state of its part of the weights alone."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from train.strategies.ddp import DataParallel
from train.strategies.strategy import State


class Zero1(DataParallel):
    """DistributedDataParallel with torch's ZeroRedundancyOptimizer."""

    name = "zero1"
    times_communication = False  # the weights are sent within the optimizer's step

    def optimizer(
        self, kind: type[torch.optim.Optimizer], weights: Iterable[nn.Parameter], settings: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Build the optimizer, of which each rank updates its part of the weights."""
        return ZeroRedundancyOptimizer(weights, optimizer_class=kind, **settings)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> State:
        """Gather the state on rank 0; the others have none of it."""
        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if self.env.rank == 0 else {}
