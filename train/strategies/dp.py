"""Use one process for all GPUs of a node: torch's DataParallel, whose threads share an interpreter.

torch recommends DistributedDataParallel instead; this strategy is for comparison.
"""

from collections.abc import Callable

import torch
from torch import nn

from train.distributed.environment import DistributedEnvironment
from train.options import Options
from train.strategies.degrees import Degrees, check_alone
from train.strategies.strategy import Strategy


class ThreadedDataParallel(Strategy):
    """torch's `DataParallel`: the batch is divided among the GPUs, the loss is computed on the first one."""

    name = "dp"

    def __init__(
        self, options: Options, env: DistributedEnvironment, device: torch.device, sizes: Degrees
    ) -> None:
        super().__init__(options, env, device, sizes)
        check_alone(env)
        if device.type == "cuda":
            self.devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]

    def wrap(self, model: nn.Module, *, steps: int, on_ready: Callable[[], None]) -> nn.Module:  # noqa: ARG002
        """Wrap the model's network so that it computes on all GPUs. On CPUs the network stays as it is."""
        model.network = nn.DataParallel(model.get_submodule("network"))
        return model
