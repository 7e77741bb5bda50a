"""How fast the ranks add up a tensor: the bandwidth between the nodes, measured in a few seconds.

Two nodes, two processes each; on the node with the address 10.0.0.1, and on the other with `--node-rank 1`:

    torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29400 -m train.allreduce

Between all ranks, and, where there are several nodes of several ranks each, within every node. Each measurement is a
line of GPUCTL_METRICS, or of standard output where that is not set:

    {"event": "allreduce", "scope": "all" | "node", "backend", "world_size", "bytes", "iterations", "seconds",
     "algorithm_gb_s", "bus_gb_s", "device"}

`seconds` is the median of an operation. Algorithm bandwidth is bytes by seconds; bus bandwidth is that times
2 (n - 1) / n, which says what the slowest link carries in each direction, however many ranks there are. GB are 10**9.
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
from train.distributed import Place, choose_device, process_group, this_place
from train.errors import TrainError

TIMEOUT_S = 30
"""Of everything: the ranks' meeting, each operation, and this process."""
SIZES = (64_000, 4_000_000, 64_000_000)
GPU_SIZES = (*SIZES, 1_000_000_000)
"""Bytes, smallest first: that one tells the latency. Links between GPUs are only busy with a gigabyte."""
WARM_UP = 3
MIN_ITERATIONS, MAX_ITERATIONS = 5, 50
BUDGET_S = 2.0
"""For one size; a size of which `MIN_ITERATIONS` would take twice that is left out."""


def main() -> int:
    """Measure, and tell; the exit status."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(TIMEOUT_S)
    place = this_place()
    device = choose_device("auto", place)
    with process_group(place, device, timeout_s=TIMEOUT_S):
        if place.world_size > 1:
            for scope, group in scopes(place):
                for measured in measure(group, device):
                    if dist.get_rank(group) == 0:
                        tell({"event": "allreduce", "scope": scope, **measured, "device": name_of(device)})
    return 0


def scopes(place: Place) -> Iterator[tuple[str, dist.ProcessGroup]]:
    """All ranks; then, where nodes have several, those of this one's node."""
    assert dist.group.WORLD is not None
    yield "all", dist.group.WORLD
    nodes: list[int] = [0] * place.world_size
    dist.all_gather_object(nodes, int(os.environ.get("GROUP_RANK", "0")))
    members = [[rank for rank, node in enumerate(nodes) if node == one] for one in sorted(set(nodes))]
    if len(members) == 1:
        return
    # Every rank makes every group, in the same order: that is how torch wants it.
    groups = [dist.new_group(ranks) for ranks in members]
    mine = nodes[place.rank]
    if nodes.count(mine) > 1:
        yield "node", groups[sorted(set(nodes)).index(mine)]


def measure(group: dist.ProcessGroup, device: torch.device) -> Iterator[dict[str, Any]]:
    """The bandwidth of each size that the time and the memory allow, smallest first."""
    world_size = dist.get_world_size(group)
    took: list[tuple[int, float]] = []
    for size in GPU_SIZES if device.type == "cuda" else SIZES:
        if too_slow(size, took) or slowest(lacks(2 * size, device), group, device):
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
    """Whether `MIN_ITERATIONS` of a size would take twice the budget, from the bytes and seconds of smaller ones."""
    if len(took) < 2:
        return False
    # What the smallest takes is hardly for its bytes, and a larger one takes it once.
    (_, latency_s), (last, seconds) = took[0], took[-1]
    return (seconds - latency_s) / last * size * MIN_ITERATIONS > 2 * BUDGET_S


def lacks(size: int, device: torch.device) -> bool:
    """Whether the GPU has less than that many bytes free."""
    return device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < size


def iterations(one_s: float) -> int:
    """How often an operation is repeated that takes `one_s`."""
    return max(MIN_ITERATIONS, min(MAX_ITERATIONS, int(BUDGET_S / max(one_s, 1e-9))))


def bandwidth(size: int, seconds: float, world_size: int) -> dict[str, float]:
    """Algorithm and bus bandwidth of an all-reduce of `size` bytes, GB/s."""
    algorithm = size / seconds / 1e9
    return {"algorithm_gb_s": algorithm, "bus_gb_s": algorithm * 2 * (world_size - 1) / world_size}


def timed(operation: Callable[[], None], device: torch.device) -> float:
    """Seconds until it is done, on the device too."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    operation()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def slowest(seconds: float, group: dist.ProcessGroup, device: torch.device) -> float:
    """The time of the slowest rank, so that all take the same decisions."""
    longest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
    return float(longest)


def name_of(device: torch.device) -> str:
    """`cpu`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def tell(line: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
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
    # Not sys.exit: to take down a process group in order can mean to wait for ranks that wait for this one.
    os._exit(status)
