"""Communication of a step, in seconds on links of the vendors' figures, by strategy. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from train.advice.machines import Machines
from train.advice.memory import Batch, is_wrapped, stages_of
from train.advice.network import Layer, Network, number_bytes
from train.options import Options
from train.strategies.degrees import SHARDED, Degrees


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Seconds of a step on the links, by the vendors' figures for them."""

    shown: float = 0.0
    """Seconds in which nothing is computed."""
    behind_all: float = 0.0
    """What both passes of all micro-batches can hide."""
    behind_last: float = 0.0
    """Seconds that the backward pass of the last micro-batch can hide."""
    ends: float = 0.0
    """Of both, what nothing is left to hide: the first weights and the last gradients."""
    buckets: tuple[float, ...] = ()
    """Of gradients: each is sent when the backward pass of the last micro-batch is through with it, in turn."""


def communication(
    network: Network, options: Options, sizes: Degrees, batch: Batch, machines: Machines
) -> Communication | None:
    """Return the communication of a step, by strategy. `None`: it needs a link that is not known."""
    if machines.world_size == 1:
        return Communication()
    if (machines.gpus > 1 and machines.within_bytes_s is None) or (
        machines.count > 1 and machines.between_bytes_s is None
    ):
        return None
    stages = stages_of(network, sizes.pp, sizes.tp)
    parts: list[Communication] = []
    if sizes.tp > 1:  # a ring all-reduce of each of the layers' results
        size = max(stage.reduced_bytes for stage in stages) * batch.micro_batch * batch.number
        link = _link(machines, stride=1, ranks=sizes.tp)
        parts.append(Communication(shown=_all_reduce(size, sizes.tp) / link))
    parts += _of_stages(network, options, stages, sizes, batch, machines)
    parts += _of_weights(network, options, stages, sizes, batch, machines)
    shown, behind_all, behind_last, ends = (
        sum(getattr(part, name) for part in parts) for name in ("shown", "behind_all", "behind_last", "ends")
    )
    if machines.backend == "gloo":
        # It has no streams: who gathers or reduces the parts of a network waits.
        shown, behind_all, behind_last, ends = shown + behind_all + behind_last, 0.0, 0.0, 0.0
    return Communication(
        shown=shown,
        behind_all=behind_all,
        behind_last=behind_last,
        ends=ends,
        buckets=next((part.buckets for part in parts if part.buckets), ()),
    )


def _of_stages(
    network: Network,
    options: Options,
    stages: tuple[Layer, ...],
    sizes: Degrees,
    batch: Batch,
    machines: Machines,
) -> Iterator[Communication]:
    """Yield the communication of a pipeline: each micro-batch to the next stage, its gradient back; tied weights."""
    if sizes.pp == 1:
        return
    link = _link(machines, stride=sizes.replicas * sizes.tp, ranks=sizes.pp)
    passed = max(stage.passed_bytes for stage in stages[:-1]) * batch.micro_batch * batch.number
    # A micro-batch is sent p - 1 times there and back, while p of them are under way.
    yield Communication(shown=2 * (sizes.pp - 1) / sizes.pp * passed / link)
    yield Communication(shown=_all_reduce(number_bytes(options.precision) * network.tied_weights, 2) / link)


def _of_weights(
    network: Network,
    options: Options,
    stages: tuple[Layer, ...],
    sizes: Degrees,
    batch: Batch,
    machines: Machines,
) -> Iterator[Communication]:
    """Yield what data-parallel ranks send: weights that are in parts, and gradients."""
    number = number_bytes(options.precision)
    size = number * max(stage.weights for stage in stages)
    outer = number * min(network.unwrapped_weights, stages[0].weights)
    """Of weights that are needed first, and whose gradients are whole last."""
    if options.strategy in SHARDED:
        link = _link(machines, stride=sizes.tp, ranks=sizes.shard)
        of_others = (sizes.shard - 1) / sizes.shard / link
        ends = min(2 * size, 2 * outer + number * stages[0].largest_part) * of_others
        reduced = (
            size * of_others * (2 if machines.backend == "gloo" else 1)
        )  # gloo reduces all for all ranks
        gathered = _gathers(options, sizes, batch) * size * of_others
        if sizes.pp > 1:  # its stages reduce their gradients at the end of a step
            yield Communication(behind_all=gathered, shown=reduced)
        else:
            yield Communication(behind_all=gathered + reduced, ends=ends)
    if sizes.replicate > 1:
        # Each rank averages its shard alone.
        link = sizes.shard * _link(machines, stride=sizes.shard * sizes.tp, ranks=sizes.replicate)
        averaged, last = (_all_reduce(each, sizes.replicate) / link for each in (size, outer))
        if sizes.pp > 1:
            yield Communication(shown=averaged)
        elif is_wrapped(options, sizes):
            yield Communication(behind_last=averaged, ends=last)
        else:
            every = _buckets(size, outer, options)
            yield Communication(buckets=tuple(_all_reduce(each, sizes.replicate) / link for each in every))
    if options.strategy == "zero1":  # the updated weights, rank by rank
        yield Communication(shown=size / _link(machines, stride=1, ranks=machines.world_size))


def _link(machines: Machines, *, stride: int, ranks: int) -> float:
    """Return the bandwidth of a rank's link in a ring of `ranks`, each `stride` after the one before.

    As many rings as the stride share the network of a machine.
    """
    within = machines.within_bytes_s or math.inf
    if stride * ranks <= machines.gpus:
        return within
    between = (machines.between_bytes_s or within) / min(stride, machines.gpus)
    return between if stride >= machines.gpus else min(within, between)


def _gathers(options: Options, sizes: Degrees, batch: Batch) -> int:
    """Return how often a step gathers the weights: for both passes of each micro-batch, unless they are retained.

    If a pipeline's passes alternate, weights gathered for one pass serve the next.
    """
    if sizes.pp > 1:
        return 1 if options.strategy == "zero2" else batch.number + 1
    return batch.number * (1 if options.strategy == "zero2" else 2)


def _buckets(gradient_bytes: float, last: float, options: Options) -> list[float]:
    """Return the bytes of DistributedDataParallel's buckets. `last`: of weights whose gradients come at the end."""
    first, each = (1.0, 25.0) if options.bucket_mb is None else (options.bucket_mb, options.bucket_mb)
    left = gradient_bytes - last
    buckets: list[float] = []
    while left > 0:
        buckets.append(min(left, (each if buckets else first) * 2**20))
        left -= buckets[-1]
    return [*buckets[:-1], buckets[-1] + last] if buckets else [last]


def _all_reduce(size: float, ranks: int) -> float:
    """Return the bytes that each link carries in a ring all-reduce of `size` bytes."""
    return 2 * (ranks - 1) / ranks * size
