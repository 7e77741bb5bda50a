"""The time of a step: computing at the attained rates of GPUs, and communication that computing does not hide.

Pure. A GPU's time is the longest of its arithmetic, its memory traffic, and its kernels, each with a minimum time.
The host starts kernels one by one in parallel, or a whole step as one graph, and the longer of both times counts.
Times are ranges, whose ends differ by at most 1.6 times: as much as each pair of constants.
"""

from collections.abc import Mapping, Sequence

from train.advice.communication import communication
from train.advice.machines import Machines
from train.advice.memory import Batch, Memory, memory_beside, optimized, stages_of
from train.advice.network import Network, number_bytes
from train.options import Options
from train.strategies.degrees import Degrees

ATTAINED = (0.75, 0.47)
"""Of the data sheet's peak, by products of matrices, the best case first: 8,192 x 8,192 have 73 to 79 % on an H200 in
all precisions (`bench/gpu.py`). With all that is moved, large transformers then have the 44 to 52 % of Narayanan et
al., "Efficient Large-Scale Language Model Training" (2021), and the 46 % of PaLM (2022)."""
ATTAINED_BY_IMAGES: Mapping[bool, tuple[float, float]] = {True: (0.95, 0.60), False: (0.545, 0.341)}
"""The same of networks for images; of fp32, which has no matrices of its own in a GPU, more is attained."""
OF_MEMORY = (0.99, 0.62)
"""Of the data sheet's rate of a GPU's memory, which networks for images wait for: most of their operations compute
little with what they read. With both, what NVIDIA's DeepLearningExamples measured of ResNet-50 is in the range: 367
images a second on a V100 in fp32, 1,200 in half precision; on an A100 938 in tf32, 2,470 in half precision."""
KERNEL_S = (3.2e-6, 5.0e-6)
"""On the GPU, for each counted operation, however small. Fitted to a prototype: a step of ResNet-18, small images,
313 counted operations in a CUDA graph, took 1.5 ms on an H200; arithmetic and memory explain 0.2 ms."""
LAUNCH_S = (24e-6, 38.4e-6)
"""On the host, for each counted operation outside of a graph: Python, autograd, libraries, driver. Fitted to steps
with an H200: ResNet-18 took 24 to 30 microseconds for each, ResNet-50 38; torch's smallest operation took 8."""
STEP_LAUNCHES = 25
"""Kernels of a step outside of both passes: drawing and normalising the batch, sums of loss and accuracy, and the
fused optimizer (one for some thirty weights)."""
LINK_SHARES = (0.80, 0.50)
"""Of a link's figure, for a ring of ranks, the best case first: two A10 machines of 48 Gbps on OCI had 66 %."""
BACKWARD = 2 / 3
"""Of computing: the backward pass does twice the arithmetic of the forward pass."""
RECOMPUTED = 4 / 3
"""Times as much computing where the forward pass is done twice."""


def has_graphs(options: Options, sizes: Degrees, memory: Memory, gpu_memory_gb: float) -> bool:
    """Return whether the job's steps are CUDA graphs.

    A graph keeps its memory, and the job does without if other batches would not have as much again.
    """
    averaged = options.graphs == "on" and options.strategy == "ddp" and options.compression == "none"
    graphable = (sizes.replicas == 1 or averaged) and not sizes.split and options.strategy != "dp"
    of_graph = memory.activations + memory.outputs + memory.gradients
    room = memory.total + memory_beside(of_graph) <= gpu_memory_gb * 1e9
    return options.allows_graphs and graphable and room


def step_s(
    network: Network, options: Options, sizes: Degrees, batch: Batch, machines: Machines, *, graphs: bool
) -> tuple[float, float] | None:
    """Return the least and most seconds of a step. `graphs`: whether it is one.

    `None`: the GPU's peak, a link or the host is not known.
    """
    peak, memory = machines.peak_flops(options.precision), machines.memory_bytes_s
    links = communication(network, options, sizes, batch, machines)
    if peak is None or memory is None or links is None or options.cpu_offload:
        return None
    stages = stages_of(network, sizes.pp, sizes.tp)
    again = RECOMPUTED if options.activation_checkpointing else 1.0
    flops = again * batch.micro_batch * max(stage.flops for stage in stages)
    moved = again * max(batch.micro_batch * stage.moved_bytes + stage.moved_once_bytes for stage in stages)
    other_launches = STEP_LAUNCHES / batch.number
    kernels = again * max(stage.launches for stage in stages) + other_launches
    launches = other_launches if graphs else kernels
    # The optimizer reads and writes weights and two moments, and reads gradients.
    updated = optimized(max(stage.weights for stage in stages), network, options, sizes)
    update = 7 * number_bytes(options.precision) * updated / memory

    def at(attained: float, of_memory: float, share: float, kernel_s: float, launch_s: float) -> float:
        pass_s = flops / (peak * attained) + moved / (memory * of_memory) + kernels * kernel_s
        pass_s = max(pass_s, launches * launch_s)
        # p stages take the time of m + p - 1 of their m micro-batches: the bubble is (p - 1) / (m + p - 1).
        computing = pass_s * (batch.number + sizes.pp - 1)
        left = max(0.0, links.behind_all / share - computing)
        left += max(0.0, links.behind_last / share - BACKWARD * pass_s)
        left = max(left, links.ends / share) + _after(
            BACKWARD * pass_s, [each / share for each in links.buckets]
        )
        return computing + update + links.shown / share + left

    attained = ATTAINED_BY_IMAGES[options.precision == "fp32"] if network.of_images else ATTAINED
    low, high = map(at, attained, OF_MEMORY, LINK_SHARES, KERNEL_S, LAUNCH_S)
    return low, high


def _after(backward_s: float, buckets: Sequence[float]) -> float:
    """Return how long after the backward pass its buckets end, given the seconds of each, in order."""
    sent_s = ready_s = 0.0
    for seconds in buckets:
        ready_s += backward_s * seconds / sum(buckets)
        sent_s = max(sent_s, ready_s) + seconds
    return max(0.0, sent_s - backward_s)
