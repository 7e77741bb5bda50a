"""The strategies by the names that `--strategy` takes; torch's parts of one are imported where it is used."""

import torch

from train.distributed.environment import DistributedEnvironment
from train.options import Options
from train.strategies.strategy import Strategy


def build_strategy(options: Options, env: DistributedEnvironment, device: torch.device) -> Strategy:
    """Build the strategy that the options name; on a single rank there is nothing to distribute."""
    kind = Strategy if env.world_size == 1 else _strategy(options)
    return kind(options, env, device)


def _strategy(options: Options) -> type[Strategy]:
    if options.strategy == "ddp":
        from train.strategies.ddp import DataParallel

        return DataParallel
    if options.strategy == "zero1":
        from train.strategies.zero import Zero1

        return Zero1
    from train.strategies.fsdp import FullyShard

    return FullyShard
