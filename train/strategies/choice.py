"""The strategies by the names that `--strategy` takes; torch's parts of one are imported where it is used."""

from dataclasses import replace

import torch
import torch.distributed as dist

from train.distributed.environment import DistributedEnvironment
from train.options import Options
from train.strategies.degrees import SHARDED, Degrees, check_nodes, degrees
from train.strategies.strategy import Strategy


def build_strategy(options: Options, env: DistributedEnvironment, device: torch.device) -> Strategy:
    """Build the strategy that the options name. Raises BadOptions if its degrees can't divide the ranks.

    A single rank has nothing to distribute.
    """
    local = [env.local_world_size] * env.world_size
    if env.world_size > 1:
        # All ranks decide alike: one that raised alone would leave others waiting for ever.
        dist.all_gather_object(local, env.local_world_size)
    sizes = degrees(options, replace(env, local_world_size=min(local)))
    check_nodes(options, sizes, local)
    return _kind(options, env, sizes)(options, env, device, sizes)


def _kind(options: Options, env: DistributedEnvironment, sizes: Degrees) -> type[Strategy]:
    if options.engine == "deepspeed":
        from train.strategies.deepspeed_engine import DeepSpeed

        return DeepSpeed
    if options.strategy == "dp":
        from train.strategies.ddp import ThreadedDataParallel

        return ThreadedDataParallel
    if env.world_size == 1:
        return Strategy
    if sizes.pp > 1:
        from train.strategies.pipeline import Pipeline

        return Pipeline
    if options.strategy in SHARDED or sizes.tp > 1:
        from train.strategies.fsdp import FullyShard

        return FullyShard
    if options.strategy == "zero1":
        from train.strategies.zero import Zero1

        return Zero1
    from train.strategies.ddp import DataParallel

    return DataParallel
