"""Compute over how many ranks a model's parts, and the batches, are divided. Imports nothing heavy.

The ranks of a tensor-parallel group are neighbours, so that they are on one node. The stages of a pipeline are far
apart: they exchange less than gradients or parts of layers take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from train.distributed.environment import DistributedEnvironment, ranks_text
from train.errors import BadOptions
from train.options import Options
from train.strategies.deepspeed_config import config_of, micro_batch_size

SHARDED = ("fsdp", "hsdp", "zero2", "zero3")
SPLIT = ("tp", "pp")
STAGES = 2
"""Default of `--pp` for `--strategy pp`."""
MICRO_BATCHES_A_STAGE = 4
"""Default, with which a stage waits for at most a fifth of a step."""


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
        """The number of data-parallel ranks, each with different samples."""
        return self.replicate * self.shard

    @property
    def stage_ranks(self) -> int:
        """The number of ranks of a stage."""
        return self.replicas * self.tp

    @property
    def split(self) -> bool:
        """Return whether a replica spans several ranks."""
        return self.pp * self.tp > 1

    def replica(self, rank: int) -> int:
        """Return the number of the replica that a rank is of."""
        return rank // self.tp % self.replicas

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // self.stage_ranks

    def place(self, rank: int) -> str:
        """Return which part of a replica a rank has: `stage 2 of 4`; empty if a replica is one rank."""
        parts = (("stage", self.stage(rank), self.pp), ("part", rank % self.tp, self.tp))
        named = [f"{name} {number + 1} of {size}" for name, number, size in parts if size > 1]
        if named and self.replicas > 1:
            named.append(f"replica {self.replica(rank) + 1} of {self.replicas}")
        return ", ".join(named)

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
    if strategy == "tp" and tp == 1 and world > pp:
        raise BadOptions(
            "--strategy tp splits layers among the ranks of a node, and a node has one rank: start more on each, or "
            "name a number with --tp, which then goes over the network."
        )
    data, over = divmod(world, tp * pp)
    if over or not data:
        sizes = " x ".join(f"{name} {size}" for name, size in (("pp", pp), ("tp", tp)) if size > 1)
        raise BadOptions(
            f"{ranks_text(world)} can't be divided by {sizes}: start a multiple of {tp * pp}, or change --pp and "
            "--tp."
        )
    if options.cpu_offload and data == 1:
        raise BadOptions(
            f"--cpu-offload is for weights in parts on several ranks, and {ranks_text(world)} here "
            f"{'has' if world == 1 else 'have'} none: start more, or leave it out."
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


def gathers_in_half(options: Options, sizes: Degrees) -> bool:
    """Return whether weights in parts are gathered in bf16, and compute so without autocast."""
    return options.precision == "bf16" and options.strategy in SHARDED and sizes.replicas > 1


def refusal(options: Options, ranks: Sequence[int]) -> str | None:
    """Return why a job can't run with these numbers of ranks on the nodes, before any rank starts, or `None`."""
    world = DistributedEnvironment(world_size=sum(ranks), local_world_size=min(ranks))
    try:
        if options.strategy == "dp":
            check_alone(world)
        sizes = degrees(options, world)
        check_nodes(options, sizes, ranks)
        batch = batch_of_rank(options, sizes.replicas)
        if batch is not None:
            micro_batches(options, sizes, batch)
        elif options.gradient_accumulation_steps is not None:
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
    """Raise BadOptions if ranks that belong on one node would be on two. `ranks`: their number on each node."""
    low, high = min(ranks), max(ranks)
    if options.strategy == "hsdp" and low != high:
        raise BadOptions(
            f"--strategy hsdp shards within a node, and one node has {ranks_text(low)}, another one {high}: start "
            "as many on each, or take --strategy fsdp."
        )
    if sizes.tp <= low and any(number % sizes.tp for number in ranks):
        odd = next(number for number in ranks if number % sizes.tp)
        raise BadOptions(
            f"Layers are split among {sizes.tp} neighbours on a node, and a node has {ranks_text(odd)}: start a "
            f"multiple of {sizes.tp} on each, or give another --tp."
        )


def strategy_name(options: Options, sizes: Degrees) -> str:
    """Return the name in the result: the option as typed, then the product: `tp 2 x ddp 2`."""
    typed = options.strategy
    if typed not in SPLIT and not sizes.split:
        return typed
    data = "ddp" if typed in SPLIT else typed
    known = {"pp": sizes.pp, "tp": sizes.tp, data: sizes.replicas}
    names = [typed, *(name for name, size in known.items() if name != typed and size > 1)]
    return " x ".join(f"{name} {known[name]}" for name in names)


def batch_of_rank(options: Options, replicas: int) -> int | None:
    """Return a rank's batch size; `None`: no option sets it. Raises BadOptions if ranks can't share a batch."""
    whole = options.global_batch_size
    if whole is None:
        return options.batch_size
    if whole % replicas:
        raise BadOptions(
            f"--global-batch-size {whole} can't be divided among {ranks_text(replicas)}. Give a multiple of "
            f"{replicas}."
        )
    return whole // replicas


def micro_batches(options: Options, sizes: Degrees, batch_size: int) -> int:
    """Return the number of micro-batches of a rank's batch.

    Raises BadOptions if the number is less than the number of stages, or does not fit the requested size.
    """
    requested, size = options.gradient_accumulation_steps, micro_batch_size(config_of(options))
    if size is not None:
        if batch_size % size or requested not in (None, batch_size // size):
            raise BadOptions(
                f"A batch of {batch_size} a rank is not {requested or 'some'} times train_micro_batch_size_per_gpu "
                f"({size}): change --deepspeed-config, or start as many ranks as it was made for."
            )
        return batch_size // size
    number = requested or (1 if sizes.pp == 1 else min(MICRO_BATCHES_A_STAGE * sizes.pp, batch_size))
    if number < sizes.pp:
        raise BadOptions(
            f"A pipeline of {sizes.pp} stages needs at least {sizes.pp} micro-batches a batch, and has {number}: its "
            "stages would wait for each other. Leave --gradient-accumulation-steps out, or give "
            f"{MICRO_BATCHES_A_STAGE * sizes.pp}, and a batch of as many samples at least."
        )
    return number


def best_cut(costs: Sequence[float], weights: Sequence[int], stages: int) -> list[range]:
    """Return the groups with the lowest maximum cost, each with weights.

    Raises BadOptions if the groups outnumber the layers with weights.
    """
    layers, whole = len(costs), sum(costs) or 1.0
    # For each number of stages: by end, the lowest cost of the most expensive stage, and where the last stage begins.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(stages):
        row: dict[int, tuple[float, int]] = {}
        for end in range(1, layers + 1):
            options = [
                (max(cost, sum(costs[begin:end]) / whole), begin)
                for begin, (cost, _) in best[-1].items()
                if begin < end and any(weights[begin:end])
            ]
            if options:
                row[end] = min(options)
        best.append(row)
    if layers not in best[-1]:
        usable = sum(1 for number in weights if number)
        raise BadOptions(
            f"--pp {stages} is more stages than the network has layers with weights ({usable}): give fewer."
        )
    cut, end = [], layers
    for row in reversed(best[1:]):
        begin = row[end][1]
        cut.append(range(begin, end))
        end = begin
    return cut[::-1]
