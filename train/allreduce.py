"""Measure the bandwidth between the nodes in a few seconds, by all-reducing tensors.

Two nodes, two processes each; on the node with the address 10.0.0.1, and on the other with `--node-rank 1`:

    torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29400 -m train.allreduce

Measures between all ranks and, with several nodes of several ranks each, within every node. Each measurement is a
line of GPUCTL_METRICS, or of standard output without that variable:

    {"event": "allreduce", "scope": "all" | "node", "backend", "world_size", "bytes", "iterations", "seconds",
     "algorithm_gb_s", "bus_gb_s", "device"}

`seconds` is the median of an operation. Algorithm bandwidth is bytes / seconds. Bus bandwidth is that times
2 (n - 1) / n: the traffic of the slowest link in each direction, whatever the number of ranks. A GB is 10**9 bytes.
Exit status: 0 done, 1 failed; after half a minute SIGALRM ends it, also in the middle of an operation.
"""

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.constants import METRICS_VARIABLE
from train.distributed.devices import choose_device
from train.distributed.environment import DistributedEnvironment, read_environment
from train.distributed.process_group import process_group
from train.errors import TrainError

TIMEOUT_S = 30
"""Timeout of the rendezvous, of each operation, and of this process."""
SIZES = (64_000, 4_000_000, 64_000_000)
GPU_SIZES = (*SIZES, 1_000_000_000)
"""Bytes, smallest first: it shows the latency. Only a gigabyte keeps links between GPUs busy."""
WARM_UP = 3
MIN_ITERATIONS, MAX_ITERATIONS = 5, 50
BUDGET_S = 2.0
"""Time for one size. A size is left out if `MIN_ITERATIONS` would take more than twice that."""


def main() -> int:
    """Measure and report. Returns the exit status."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.alarm(TIMEOUT_S)
    env = read_environment()
    device = choose_device("auto", env)
    with process_group(env, device, timeout_s=TIMEOUT_S):
        if env.world_size > 1:
            for scope, group in scopes(env):
                for measured in measure(group, device):
                    if dist.get_rank(group) == 0:
                        write(
                            {"event": "allreduce", "scope": scope, **measured, "device": device_name(device)}
                        )
    return 0


def scopes(env: DistributedEnvironment) -> Iterator[tuple[str, dist.ProcessGroup]]:
    """Yield the group of all ranks, then, with several nodes, the group of this node's ranks if it has several."""
    assert dist.group.WORLD is not None
    yield "all", dist.group.WORLD
    nodes: list[int] = [0] * env.world_size
    dist.all_gather_object(nodes, int(os.environ.get("GROUP_RANK", "0")))
    members = [[rank for rank, node in enumerate(nodes) if node == member] for member in sorted(set(nodes))]
    if len(members) == 1:
        return
    # torch requires that every rank makes every group, in the same order.
    groups = [dist.new_group(ranks) for ranks in members]
    mine = nodes[env.rank]
    if nodes.count(mine) > 1:
        yield "node", groups[sorted(set(nodes)).index(mine)]


def measure(group: dist.ProcessGroup, device: torch.device) -> Iterator[dict[str, Any]]:
    """Measure the bandwidth of each size that the time and the memory allow, smallest first."""
    world_size = dist.get_world_size(group)
    took: list[tuple[int, float]] = []
    for size in GPU_SIZES if device.type == "cuda" else SIZES:
        if too_slow(size, took) or slowest(lacks_memory(2 * size, device), group, device):
            return
        tensor = torch.zeros(size // 4, device=device)

        def operation(tensor: torch.Tensor = tensor) -> None:
            dist.all_reduce(tensor, group=group)

        one_s = min(slowest(timed(operation, device), group, device) for _ in range(WARM_UP))
        count = iterations(one_s)
        seconds = statistics.median(slowest(timed(operation, device), group, device) for _ in range(count))
        yield {
            "backend": dist.get_backend(group),
            "world_size": world_size,
            "bytes": size,
            "iterations": count,
            "seconds": seconds,
            **bandwidth(size, seconds, world_size),
        }
        took.append((size, seconds))


def too_slow(size: int, took: Sequence[tuple[int, float]]) -> bool:
    """Estimate from smaller sizes (bytes, seconds) whether `MIN_ITERATIONS` would take twice the budget."""
    if len(took) < 2:
        return False
    # Nearly all the time of the smallest size is latency, which a larger size has once, too.
    (_, latency_s), (last, seconds) = took[0], took[-1]
    return (seconds - latency_s) / last * size * MIN_ITERATIONS > 2 * BUDGET_S


def lacks_memory(size: int, device: torch.device) -> bool:
    """Return whether the GPU has less than that many bytes free."""
    return device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < size


def iterations(one_s: float) -> int:
    """Return how often to repeat an operation that takes `one_s`."""
    return max(MIN_ITERATIONS, min(MAX_ITERATIONS, int(BUDGET_S / max(one_s, 1e-9))))


def bandwidth(size: int, seconds: float, world_size: int) -> dict[str, float]:
    """Return the algorithm and bus bandwidth of an all-reduce of `size` bytes, GB/s."""
    algorithm = size / seconds / 1e9
    return {"algorithm_gb_s": algorithm, "bus_gb_s": algorithm * 2 * (world_size - 1) / world_size}


def timed(operation: Callable[[], None], device: torch.device) -> float:
    """Return the seconds until the operation is done, on the device too."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    operation()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def slowest(seconds: float, group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the time of the slowest rank, so that all ranks decide alike."""
    longest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
    return float(longest)


def device_name(device: torch.device) -> str:
    """Return `cpu`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def write(line: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Append a line to the metrics file, or print it."""
    text = json.dumps({**line, "time": time.time(), "rank": int(environ.get("RANK", "0"))})
    if METRICS_VARIABLE in environ:
        with Path(environ[METRICS_VARIABLE]).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    else:
        print(text, flush=True)


if __name__ == "__main__":
    try:
        status = main()
    except TrainError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        status = 1
    # Not sys.exit: to destroy a process group in order can mean to wait for ranks that wait for this one.
    os._exit(status)
