"""The memory of the fullest rank of a job, part by part: plain formulas, without torch.

N stands for the weights of a rank before they are sharded: those of its stage, with its part of what tensor
parallelism splits. W is the bytes of a number (4, or 8 for fp64).
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from train.advice.network import HALF, Layer, Network, joined, number_bytes
from train.options import Options
from train.strategies.balance import best_cut
from train.strategies.degrees import SHARDED, Degrees, gathers_in_half

LIBRARIES_BYTES = 1.5e9
"""Of CUDA's context, NCCL's buffers and cuBLAS's workspaces: around that much of a GPU before any tensor. An H200 had
1.4 GB in use while it multiplied matrices of 8,192 x 8,192."""
USABLE = 0.95
"""Of a GPU's memory, before what is free lies in pieces that are too small."""
STATES = {"adam": 2, "adamw": 2, "sgd": 1}
"""Numbers that an optimizer keeps for each weight: two moments, or the momentum."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Weights and gradients that are whole for a moment, as other ranks' parts of them are here, too."""
    activations: float
    """What is kept for the backward pass."""
    outputs: float
    """The network's outputs, with what the loss makes of them."""
    libraries: float = LIBRARIES_BYTES

    @property
    def total(self) -> float:
        """All parts together."""
        return float(sum(getattr(self, part.name) for part in fields(self)))

    def parts_gb(self) -> dict[str, float]:
        """Return the parts by their names, GB (10**9 bytes)."""
        return {part.name: round(getattr(self, part.name) / 1e9, 2) for part in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How a rank's batch is computed."""

    micro_batch: int
    """Samples that are computed at once."""
    number: int
    """Micro-batches of a rank's batch."""


def fits(memory: Memory, gpu_memory_gb: float) -> bool:
    """Return whether a GPU of so many GB has room for it."""
    return memory.total <= USABLE * gpu_memory_gb * 1e9


@lru_cache(maxsize=64)
def stages_of(network: Network, stages: int, tp: int) -> tuple[Layer, ...]:
    """Return what a rank of each stage has, where the dearest stage computes least. Raises BadOptions.

    The last one has a copy of the weights that it shares with the first.
    """
    if stages == 1:
        return (joined(network.layers).of_rank(tp),)
    cuts = best_cut(
        [layer.flops for layer in network.layers], [layer.weights for layer in network.layers], stages
    )
    *first, last = (joined(network.layers[cut.start : cut.stop]).of_rank(tp) for cut in cuts)
    return (*first, replace(last, weights=last.weights + network.tied_weights))


def fullest_rank(network: Network, options: Options, sizes: Degrees, batch: Batch) -> Memory:
    """Return the memory of the rank that needs most: mostly one of the first stage, or of the last."""
    network = computed_as(network, options, sizes)
    every = (_of_stage(network, options, sizes, batch, at) for at in range(sizes.pp))
    return max(every, key=lambda memory: memory.total)


def computed_as(network: Network, options: Options, sizes: Degrees) -> Network:
    """Return the network with the precisions that it computes in: gathered weights in bf16 need no copies."""
    return (network.in_half if gathers_in_half(options, sizes) else None) or network


def _of_stage(network: Network, options: Options, sizes: Degrees, batch: Batch, at: int) -> Memory:
    number = number_bytes(options.precision)
    own = 0 if options.cpu_offload else number  # what is in the host's memory takes none of the GPU's
    stage = stages_of(network, sizes.pp, sizes.tp)[at]
    return Memory(
        weights=own * own_weights(stage.weights, sizes),
        gradients=(number if batch.number > 1 else own)
        * gradients_kept(stage.weights, options, sizes, batch),
        optimizer=own * STATES[options.optimizer] * optimized(stage.weights, network, options, sizes),
        gathered=gathered(stage, network, options, sizes, batch),
        activations=activations(stage, options, sizes, batch, at),
        outputs=batch.micro_batch * network.output_bytes if at == sizes.pp - 1 else 0.0,
    )


def activations(stage: Layer, options: Options, sizes: Degrees, batch: Batch, at: int) -> float:
    """Return what is there for the backward pass: what is kept and, where blocks compute again, what one saves.

    1F1B has p - s micro-batches under way on stage s of p (Narayanan et al., 2021).
    """
    again = stage.block if options.activation_checkpointing else None
    kept = min(batch.number, sizes.pp - at) * saved(stage, options, batch)
    return kept if again is None else kept + _saved(again, batch)


def saved(stage: Layer, options: Options, batch: Batch) -> float:
    """Return what is kept of a micro-batch after its forward pass."""
    return _saved(stage.recomputed() if options.activation_checkpointing else stage, batch)


def _saved(layer: Layer, batch: Batch) -> float:
    """Return what a layer saves of a micro-batch.

    autocast keeps a copy of the weights in half precision for each of them; autograd keeps it whole, also where the
    weights are sharded again.
    """
    return batch.micro_batch * layer.saved_bytes + HALF * layer.copied_weights


def own_weights(weights: float, sizes: Degrees) -> float:
    """Return N / shard: what a rank keeps of its weights between steps (Rajbhandari et al., "ZeRO", 2020)."""
    return weights / sizes.shard


def optimized(weights: float, network: Network, options: Options, sizes: Degrees) -> float:
    """Return the weights that a rank updates: N / shard; with zero1, N / ranks, but at least the largest tensor."""
    if options.strategy == "zero1":
        return max(weights / sizes.replicas, min(weights, network.largest_weight))
    return own_weights(weights, sizes)


def is_wrapped(options: Options, sizes: Degrees) -> bool:
    """Return whether `fully_shard` has the weights: they are sharded, or a split replica is averaged with others."""
    return sizes.replicas > 1 and (options.strategy in SHARDED or sizes.split)


def gradients_kept(weights: float, options: Options, sizes: Degrees, batch: Batch) -> float:
    """Return N / shard gradients. Of several micro-batches, all N of them: they are added up before they are sent."""
    if is_wrapped(options, sizes) and batch.number > 1:
        return weights
    return own_weights(weights, sizes)


def gathered(stage: Layer, network: Network, options: Options, sizes: Degrees, batch: Batch) -> float:
    """Return the bytes of weights and gradients that are whole for a moment.

    Resharded after each part: what is gathered with the whole network, and two parts of it, the next one being
    gathered while one computes, or more of them by --prefetch; and gradients of two, which are added up in whole
    precision. zero2, what is not sharded, and a pipeline keep all N weights until the backward pass.
    """
    if not is_wrapped(options, sizes):
        return 0.0
    number = number_bytes(options.precision)

    def at_once(parts: int) -> float:
        return min(stage.weights, network.unwrapped_weights + parts * stage.largest_part)

    resharded = options.strategy in SHARDED and options.strategy != "zero2" and sizes.pp == 1
    weights = at_once(1 + (options.prefetch or 1)) if resharded else stage.weights
    of_weights = HALF if gathers_in_half(options, sizes) else number
    return of_weights * weights + (number * at_once(2) if batch.number == 1 else 0.0)
