"""How long a step takes: computing at what GPUs attain, and what of the communication is not hidden behind it.

Pure. Times are ranges, the ends of which are never further apart than 1.6 times: as far as those of both constants.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from train.advice.machines import Machines
from train.advice.memory import Batch, optimized, stages_of
from train.advice.network import Network, number_bytes
from train.options import Options
from train.strategies.degrees import SHARDED, Degrees

ATTAINED = (0.48, 0.30)
"""Of the data sheet's peak, by large transformers, the best case first: 30 % (MT-NLG) and 46 % (PaLM) in Chowdhery et
al., "PaLM" (2022), 44 to 52 % in Narayanan et al., "Efficient Large-Scale Language Model Training" (2021)."""
LINK_SHARES = (0.80, 0.50)
"""Of a link's figure, for a ring of ranks, the best case first: two A10 machines of 48 Gbps on OCI had 66 %."""
BACKWARD = 2 / 3
"""Of computing: the backward pass does twice the arithmetic of the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Seconds of a step on the links, by the vendors' figures for them."""

    shown: float = 0.0
    """Nothing is computed meanwhile."""
    behind_all: float = 0.0
    """What both passes of all micro-batches can hide."""
    behind_last: float = 0.0
    """What the backward pass of the last micro-batch can hide."""


def step_s(
    network: Network, options: Options, sizes: Degrees, batch: Batch, machines: Machines
) -> tuple[float, float] | None:
    """Return the least and most seconds of a step. None: the GPU's peak or a link is not known."""
    peak, memory = machines.peak_flops(options.precision), machines.memory_bytes_s
    links = communication(network, options, sizes, batch, machines)
    if peak is None or memory is None or links is None:
        return None
    flops = batch.micro_batch * max(stage.flops for stage in stages_of(network, sizes.pp, sizes.tp))
    update = _update_bytes(network, options, sizes) / memory

    def at(attained: float, share: float) -> float:
        one = flops / (peak * attained)
        # p stages take the time of m + p - 1 of their m micro-batches: the bubble is (p - 1) / (m + p - 1).
        computing = one * (batch.number + sizes.pp - 1)
        left = max(0.0, links.behind_all / share - computing)
        left += max(0.0, links.behind_last / share - BACKWARD * one)
        return computing + update + links.shown / share + left

    low, high = map(at, ATTAINED, LINK_SHARES)
    return low, high


def _update_bytes(network: Network, options: Options, sizes: Degrees) -> float:
    """Return the bytes that the optimizer moves: it reads and writes weights and two moments, and reads gradients."""
    weights = max(stage.weights for stage in stages_of(network, sizes.pp, sizes.tp))
    return 7 * number_bytes(options.precision) * optimized(weights, network, options, sizes)


def communication(
    network: Network, options: Options, sizes: Degrees, batch: Batch, machines: Machines
) -> Communication | None:
    """Return what a step sends, by strategy. None: a link is not known that it needs."""
    if machines.world_size == 1:
        return Communication()
    within, between, slowest = machines.within_bytes_s, machines.between_bytes_s, machines.slowest_bytes_s
    if slowest is None or (machines.gpus > 1 and within is None) or (machines.count > 1 and between is None):
        return None
    found = list(_parts(network, options, sizes, batch, machines))
    return Communication(
        shown=sum(part.shown for part in found),
        behind_all=sum(part.behind_all for part in found),
        behind_last=sum(part.behind_last for part in found),
    )


def _parts(
    network: Network, options: Options, sizes: Degrees, batch: Batch, machines: Machines
) -> Iterator[Communication]:
    """Yield what each kind of splitting sends. The links that it needs are known."""
    stages = stages_of(network, sizes.pp, sizes.tp)
    gradient_bytes = number_bytes(options.precision) * max(stage.weights for stage in stages)
    slowest = machines.slowest_bytes_s or 1.0
    within = machines.within_bytes_s or slowest
    across = machines.count > 1
    if sizes.tp > 1:  # of a layer's results, a ring all-reduce each
        reduced = max(stage.reduced_bytes for stage in stages)
        link = within if sizes.tp <= machines.gpus else slowest
        yield Communication(shown=_all_reduce(reduced * batch.micro_batch * batch.number, sizes.tp) / link)
    if sizes.pp > 1:
        # Each micro-batch goes to the next stage, and its gradient back; all ranks of a machine share its network.
        sharing = machines.gpus if across else 1
        passed = 2 * network.passed_bytes * batch.micro_batch * batch.number
        yield Communication(shown=sharing * passed / slowest)
        tied = number_bytes(options.precision) * network.tied_weights
        yield Communication(shown=sharing * _all_reduce(tied, 2) / slowest)
    if options.strategy in SHARDED:
        # Weights are gathered for the forward pass of each micro-batch and, unless they were kept, for its backward
        # pass; gradients are reduced once, into the parts.
        gathers = batch.number * (1 if options.strategy == "zero2" else 2) if sizes.pp == 1 else 2
        once = gradient_bytes * (sizes.shard - 1) / sizes.shard
        link = within if sizes.replicate > 1 or not across else slowest
        yield Communication(behind_all=(gathers + 1) * once / link)
    if sizes.replicate > 1:
        # Each rank averages its shard; those of a machine share its network.
        link = slowest if across else within
        yield Communication(behind_last=_all_reduce(gradient_bytes, sizes.replicate) / link)
    if options.strategy == "zero1":
        yield Communication(shown=gradient_bytes / slowest)  # the updated weights


def _all_reduce(size: float, ranks: int) -> float:
    """Return the bytes that each link carries in a ring all-reduce of `size` bytes."""
    return 2 * (ranks - 1) / ranks * size
