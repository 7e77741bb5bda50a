"""How long a step takes: computing at what GPUs attain, and what of the communication is not hidden behind it.

Pure. Times are ranges, the ends of which are never further apart than 1.6 times: as far as those of both constants.
"""

from collections.abc import Mapping, Sequence

from train.advice.communication import communication
from train.advice.machines import Machines
from train.advice.memory import Batch, optimized, stages_of
from train.advice.network import Network, number_bytes
from train.options import Options
from train.strategies.degrees import Degrees

ATTAINED = (0.48, 0.30)
"""Of the data sheet's peak, by large transformers, the best case first: 30 % (MT-NLG) and 46 % (PaLM) in Chowdhery et
al., "PaLM" (2022), 44 to 52 % in Narayanan et al., "Efficient Large-Scale Language Model Training" (2021)."""
ATTAINED_BY_IMAGES: Mapping[bool, tuple[float, float]] = {True: (0.95, 0.60), False: (0.545, 0.341)}
"""The same of networks for images; of fp32, which has no matrices of its own in a GPU, more is attained."""
OF_MEMORY = (0.99, 0.62)
"""Of the data sheet's rate of a GPU's memory, which networks for images wait for: most of their operations compute
little with what they read. With both, what NVIDIA's DeepLearningExamples measured of ResNet-50 is in the range: 367
images a second on a V100 in fp32, 1,200 in half precision; on an A100 938 in tf32, 2,470 in half precision."""
LINK_SHARES = (0.80, 0.50)
"""Of a link's figure, for a ring of ranks, the best case first: two A10 machines of 48 Gbps on OCI had 66 %."""
BACKWARD = 2 / 3
"""Of computing: the backward pass does twice the arithmetic of the forward pass."""
RECOMPUTED = 4 / 3
"""Times as much computing where the forward pass is done twice."""


def step_s(
    network: Network, options: Options, sizes: Degrees, batch: Batch, machines: Machines
) -> tuple[float, float] | None:
    """Return the least and most seconds of a step. None: the GPU's peak, a link or the host is not known."""
    peak, memory = machines.peak_flops(options.precision), machines.memory_bytes_s
    links = communication(network, options, sizes, batch, machines)
    if peak is None or memory is None or links is None or options.cpu_offload:
        return None
    stages = stages_of(network, sizes.pp, sizes.tp)
    again = RECOMPUTED if options.activation_checkpointing else 1.0
    flops = again * batch.micro_batch * max(stage.flops for stage in stages)
    moved = again * max(batch.micro_batch * stage.moved_bytes + stage.moved_once_bytes for stage in stages)
    update = _update_bytes(network, options, sizes) / memory

    def at(attained: float, of_memory: float, share: float) -> float:
        one = flops / (peak * attained) + moved / (memory * of_memory)
        # p stages take the time of m + p - 1 of their m micro-batches: the bubble is (p - 1) / (m + p - 1).
        computing = one * (batch.number + sizes.pp - 1)
        left = max(0.0, links.behind_all / share - computing)
        left += max(0.0, links.behind_last / share - BACKWARD * one)
        left = max(left, links.ends / share) + _after(
            BACKWARD * one, [each / share for each in links.buckets]
        )
        return computing + update + links.shown / share + left

    attained = ATTAINED_BY_IMAGES[options.precision == "fp32"] if network.of_images else ATTAINED
    low, high = map(at, attained, OF_MEMORY, LINK_SHARES)
    return low, high


def _after(backward_s: float, buckets: Sequence[float]) -> float:
    """Return how long buckets of so many seconds, which become whole one after the other, take beyond that pass."""
    sent_s = ready_s = 0.0
    for seconds in buckets:
        ready_s += backward_s * seconds / sum(buckets)
        sent_s = max(sent_s, ready_s) + seconds
    return max(0.0, sent_s - backward_s)


def _update_bytes(network: Network, options: Options, sizes: Degrees) -> float:
    """Return the bytes that the optimizer moves: it reads and writes weights and two moments, and reads gradients."""
    weights = max(stage.weights for stage in stages_of(network, sizes.pp, sizes.tp))
    return 7 * number_bytes(options.precision) * optimized(weights, network, options, sizes)
