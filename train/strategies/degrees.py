"""Over how many ranks a model's parts, and the batches, are divided. Imports nothing heavy.

The ranks of a tensor-parallel group are neighbours, so that they are on one node. The stages of a pipeline are far
apart: they send each other less than what gradients or parts of layers take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from train.distributed.environment import DistributedEnvironment
from train.errors import BadOptions
from train.options import Options

SHARDED = ("fsdp", "hsdp", "zero2", "zero3")
SPLIT = ("tp", "pp")
STAGES = 2
"""Of `--strategy pp`, unless `--pp` says otherwise."""
MICRO_BATCHES_A_STAGE = 4
"""Unless the options say otherwise: a stage then waits for at most a fifth of a step."""


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """The sizes of the mesh of ranks, from the outermost to the innermost."""

    pp: int = 1
    """Stages of the pipeline."""
    replicate: int = 1
    """Ranks that have the same weights, and average their gradients."""
    shard: int = 1
    """Ranks that each keep a part of the weights, and compute other samples."""
    tp: int = 1
    """Ranks that each compute a part of a layer."""

    @property
    def replicas(self) -> int:
        """The number of data-parallel ranks: those that compute other samples than each other."""
        return self.replicate * self.shard

    @property
    def split(self) -> bool:
        """Whether a replica is of several ranks."""
        return self.pp * self.tp > 1

    def replica(self, rank: int) -> int:
        """Return the number of the replica that a rank is of."""
        return rank // self.tp % self.replicas

    def stage(self, rank: int) -> int:
        """Return the stage of the pipeline that a rank is of."""
        return rank // (self.replicas * self.tp)

    def counts(self, rank: int) -> bool:
        """Return whether a rank counts the samples of its replica: one of its ranks does, of the last stage."""
        return rank % self.tp == 0 and self.stage(rank) == self.pp - 1


def degrees(options: Options, env: DistributedEnvironment) -> Degrees:
    """Return the sizes that the options mean for these ranks. Raises BadOptions where they can't be divided so.

    `env.local_world_size`: the least of all nodes, so that all ranks find the same.
    """
    strategy, world, local = options.strategy, env.world_size, env.local_world_size
    pp = options.pp or (min(STAGES, world) if strategy == "pp" else 1)
    tp = options.tp or (min(local, max(1, world // pp)) if strategy == "tp" else 1)
    data, over = divmod(world, tp * pp)
    if over or not data:
        sizes = " x ".join(f"{name} {size}" for name, size in (("pp", pp), ("tp", tp)) if size > 1)
        raise BadOptions(
            f"{_ranks(world)} can't be divided by {sizes}: start a multiple of {tp * pp}, or change --pp and --tp."
        )
    if strategy == "hsdp":
        shard = max(1, min(data, local // tp))
        if data % shard:
            raise BadOptions(
                f"--strategy hsdp shards within a node, and {data} ranks can't be divided into groups of {shard}: "
                "take --strategy fsdp."
            )
        return Degrees(pp=pp, replicate=data // shard, shard=shard, tp=tp)
    if strategy in SHARDED:
        return Degrees(pp=pp, shard=data, tp=tp)
    return Degrees(pp=pp, replicate=data, tp=tp)


def refusal(options: Options, ranks: Sequence[int]) -> str | None:
    """Return why a job can't run with so many ranks on each node, before any of them starts; None: it can."""
    world = DistributedEnvironment(world_size=sum(ranks), local_world_size=min(ranks))
    try:
        if options.strategy == "dp":
            check_alone(world)
        sizes = degrees(options, world)
        check_nodes(options, sizes, ranks)
        if options.gradient_accumulation_steps is not None:
            micro_batches(options, sizes, options.gradient_accumulation_steps)
    except BadOptions as error:
        return str(error)
    return None


def check_alone(env: DistributedEnvironment) -> None:
    """Raise BadOptions where --strategy dp has more than one process."""
    if env.world_size > 1:
        raise BadOptions(
            f"--strategy dp is one process for all GPUs of one node, and there are {env.world_size} ranks: start one "
            "(gpuctl train --nnodes 1 --nproc-per-node 1), or take --strategy ddp, which is faster."
        )


def check_nodes(options: Options, sizes: Degrees, ranks: Sequence[int]) -> None:
    """Raise BadOptions where what belongs on one node would be on two. `ranks`: how many each node has."""
    least, most = min(ranks), max(ranks)
    if options.strategy == "hsdp" and least != most:
        raise BadOptions(
            f"--strategy hsdp shards within a node, and one node has {_ranks(least)}, another one {most}: start as "
            "many on each, or take --strategy fsdp."
        )
    if sizes.tp <= least and any(number % sizes.tp for number in ranks):
        odd = next(number for number in ranks if number % sizes.tp)
        raise BadOptions(
            f"Layers are split among {sizes.tp} neighbours on a node, and a node has {_ranks(odd)}: start a multiple "
            f"of {sizes.tp} on each, or give another --tp."
        )


def strategy_name(options: Options, sizes: Degrees) -> str:
    """Return what the result tells: the option as it was typed, then the product: `tp 2 x ddp 2`."""
    typed = options.strategy
    if typed not in SPLIT and not sizes.split:
        return typed
    data = "ddp" if typed in SPLIT else typed
    known = {"pp": sizes.pp, "tp": sizes.tp, data: sizes.replicas}
    names = [typed, *(name for name, size in known.items() if name != typed and size > 1)]
    return " x ".join(f"{name} {known[name]}" for name in names)


def micro_batches(options: Options, sizes: Degrees, batch_size: int) -> int:
    """Return the number of micro-batches of a rank's batch. Raises BadOptions for fewer than there are stages."""
    given = options.gradient_accumulation_steps
    number = given or (1 if sizes.pp == 1 else min(MICRO_BATCHES_A_STAGE * sizes.pp, batch_size))
    if number < sizes.pp:
        raise BadOptions(
            f"A pipeline of {sizes.pp} stages needs at least {sizes.pp} micro-batches a batch, and has {number}: its "
            "stages would wait for each other. Leave --gradient-accumulation-steps out, or give "
            f"{MICRO_BATCHES_A_STAGE * sizes.pp}, and a batch of as many samples at least."
        )
    return number


def _ranks(number: int) -> str:
    return f"{number} rank{'' if number == 1 else 's'}"
