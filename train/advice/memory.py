"""The memory of the fullest rank of a job, part by part: plain formulas, without torch.

N stands for the weights of a rank before they are sharded: its stage's, with its part of matrices split by tensor
parallelism. W is the bytes of a number (4, or 8 for fp64).
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from train.advice.network import HALF, Layer, Network, joined, number_bytes
from train.options import Options
from train.strategies.degrees import SHARDED, Degrees, best_cut, gathers_in_half

LIBRARIES_BYTES = 1.5e9
"""Of CUDA's context, NCCL's buffers and cuBLAS's workspaces: around that much of a GPU before any tensor. An H200 had
1.4 GB in use while it multiplied matrices of 8,192 x 8,192."""
USABLE = 0.95
"""Part of a GPU's memory that is usable: the rest is lost to fragments."""
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
    """Bytes saved for the backward pass."""
    outputs: float
    """Bytes of the network's outputs and the loss's own tensors."""
    libraries: float = LIBRARIES_BYTES

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return float(sum(getattr(self, part.name) for part in fields(self)))

    def parts_gb(self) -> dict[str, float]:
        """Return the parts by their names, GB (10**9 bytes)."""
        return {part.name: round(getattr(self, part.name) / 1e9, 2) for part in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The division of a rank's batch."""

    micro_batch: int
    """Samples that are computed at once."""
    number: int
    """Micro-batches of a rank's batch."""


def fits(memory: Memory, gpu_memory_gb: float) -> bool:
    """Return whether the memory fits a GPU of that many GB."""
    return memory.total <= USABLE * gpu_memory_gb * 1e9


@lru_cache(maxsize=64)
def stages_of(network: Network, stages: int, tp: int) -> tuple[Layer, ...]:
    """Return each stage's layers, divided so that the dearest stage computes least. Raises BadOptions.

    The last stage has a copy of the weights that it shares with the first.
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
    number = number_bytes(options.precision)
    gpu_bytes = 0 if options.cpu_offload else number  # with --cpu-offload these are in the host's memory
    every = (
        Memory(
            weights=gpu_bytes * own_weights(stage.weights, sizes),
            gradients=(number if batch.number > 1 else gpu_bytes)
            * gradients_kept(stage.weights, options, sizes, batch),
            optimizer=gpu_bytes
            * STATES[options.optimizer]
            * optimized(stage.weights, network, options, sizes),
            gathered=gathered(stage, network, options, sizes, batch),
            activations=activations(stage, options, sizes, batch, at),
            outputs=batch.micro_batch * network.output_bytes if at == sizes.pp - 1 else 0.0,
        )
        for at, stage in enumerate(stages_of(network, sizes.pp, sizes.tp))
    )
    return max(every, key=lambda memory: memory.total)


def computed_as(network: Network, options: Options, sizes: Degrees) -> Network:
    """Return the network with the precisions that it computes in: gathered weights in bf16 need no copies."""
    return (network.in_half if gathers_in_half(options, sizes) else None) or network


def activations(stage: Layer, options: Options, sizes: Degrees, batch: Batch, at: int) -> float:
    """Return the bytes for the backward pass: saved tensors and, if blocks compute twice, one block's tensors.

    1F1B has p - s micro-batches in flight on stage s of p (Narayanan et al., 2021).
    """
    again = stage.block if options.activation_checkpointing else None
    saved_bytes = min(batch.number, sizes.pp - at) * saved(stage, options, batch)
    return saved_bytes if again is None else saved_bytes + _saved(again, batch)


def saved(stage: Layer, options: Options, batch: Batch) -> float:
    """Return the bytes of a micro-batch that are saved after its forward pass."""
    return _saved(stage.recomputed() if options.activation_checkpointing else stage, batch)


def _saved(layer: Layer, batch: Batch) -> float:
    """Return the bytes of a micro-batch that a layer saves.

    autocast copies the weights to half precision for each micro-batch; autograd saves the whole copy, also of sharded
    weights.
    """
    return batch.micro_batch * layer.saved_bytes + HALF * layer.copied_weights


def own_weights(weights: float, sizes: Degrees) -> float:
    """Return N / shard: the weights that a rank keeps between steps (Rajbhandari et al., "ZeRO", 2020)."""
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

    If resharded after each part: weights gathered with the whole network, and two parts (the next one is gathered
    while one computes; more with --prefetch); and gradients of two parts, added up in whole precision. zero2,
    unsharded weights, and a pipeline keep all N weights until the backward pass.
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


def memory_beside(graph_bytes: float) -> float:
    """Return the bytes that have to be free in addition to the graph of a step.

    Other batches need about as much as the graph, and the allocator's blocks do not fit exactly.
    """
    return 1.25 * graph_bytes + 0.5e9
