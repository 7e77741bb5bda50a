"""The load of the node (CPUs, memory, network, disk, GPUs; unknown values are `None`), and a run's log of it."""

import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Sequence, Tuple

from remote.node import process
from remote.node.gpu.gpu_usage import Feed
from remote.node.runs.gpu_watch import GpuWatch
from remote.shared import frames
from remote.shared.constants import USAGE
from remote.shared.files import read_json, read_text

PROC = Path("/proc")
NET = Path("/sys/class/net")
FIRST_S = 0.5
"""The time that the first sample's rates are of."""
FIRST_GPUS_S = 10.0
"""nvidia-smi is waited for that long at the start: it may have to wake the driver."""

Counters = Dict[str, Tuple[int, int]]
"""Interface → bytes received and sent since it came up."""
FIRST_LINE_S = 1.0
LINES_A_STEP = 256
"""After this number of lines a line is of twice the time: 2,048 lines last for 18 hours, 4,096 for half a year."""
TICK_S = 5.0
"""Samples are at most this far apart; a line is made of all that were taken in its time."""
GPU_TICK_S = 2.0
NICENESS = 10

MEANS = ("cpu_utilization", "load_1m", "received_bytes_per_s", "sent_bytes_per_s")
GPU_MEANS = ("utilization", "power_w")


def parse_stat(text: str) -> Optional[Tuple[int, int]]:
    """/proc/stat: ticks in which the CPUs worked, and all ticks. `None`: it does not say."""
    for line in text.splitlines():
        name, *words = line.split()
        if name == "cpu" and len(words) >= 4 and all(word.isdecimal() for word in words):
            # Guests' time, behind the first eight, is in the users' already.
            ticks = [int(word) for word in words[:8]]
            return sum(ticks) - sum(ticks[3:5]), sum(ticks)
    return None


def busy(before: Optional[Tuple[int, int]], after: Optional[Tuple[int, int]]) -> Optional[float]:
    """The fraction of the time between two looks in which the CPUs worked, 0 .. 1."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    # The kernel's count of idle ticks may go back a little.
    return min(max((after[0] - before[0]) / (after[1] - before[1]), 0.0), 1.0)


def parse_meminfo(text: str) -> Optional[Tuple[int, int]]:
    """/proc/meminfo: bytes that programs can't have any more, and bytes in all. `None`: it does not say."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name in ("MemTotal", "MemAvailable") and words and words[0].isdecimal():
            values[name] = int(words[0]) * 1024
    if len(values) != 2:
        return None
    return values["MemTotal"] - values["MemAvailable"], values["MemTotal"]


def parse_net(text: str) -> Counters:
    """/proc/net/dev: each interface's counters."""
    counters = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and len(words) >= 9 and words[0].isdecimal() and words[8].isdecimal():
            counters[name.strip()] = (int(words[0]), int(words[8]))
    return counters


def rates(
    before: Counters, after: Counters, interfaces: Sequence[str], seconds: float
) -> Tuple[Optional[float], Optional[float]]:
    """Bytes a second received and sent on the interfaces together; `None` where any of them began anew."""
    both = [(before[name], after[name]) for name in interfaces if name in before and name in after]
    if not both or seconds <= 0 or any(new[i] < old[i] for old, new in both for i in (0, 1)):
        return None, None
    received, sent = (sum(new[i] - old[i] for old, new in both) / seconds for i in (0, 1))
    return received, sent


def physical(net: Path) -> List[str]:
    """Return the interfaces with own hardware; if no interface has any (in a container), all but loopback."""
    try:
        names = sorted(path.name for path in net.iterdir())
    except OSError:
        return []
    return [name for name in names if (net / name / "device").exists()] or [n for n in names if n != "lo"]


class Sampler:
    """Takes samples; rates are of the time since the sample before. To be closed.

    `interfaces`: the ones whose bytes count; empty: all physical ones. `gpus`: UUIDs; empty: all. Makes nvidia-smi
    report every `every_s`.
    """

    def __init__(self, every_s: float, interfaces: Sequence[str] = (), gpus: Sequence[str] = ()) -> None:
        self.gpus = Feed(every_s, visible=",".join(gpus) or None)
        self._interfaces = list(interfaces) or physical(NET)
        self._home = os.path.expanduser("~")
        self._before = self._read()

    def close(self) -> None:
        """End nvidia-smi."""
        self.gpus.close()

    @staticmethod
    def _read() -> Tuple[float, Optional[Tuple[int, int]], Counters]:
        return (
            time.monotonic(),
            parse_stat(read_text(PROC / "stat")),
            parse_net(read_text(PROC / "net" / "dev")),
        )

    def sample(self) -> Dict[str, Any]:
        """Return the load of the node. `seconds`: the time that the rates are of; fractions are 0 .. 1."""
        before, self._before = self._before, self._read()
        seconds = self._before[0] - before[0]
        received, sent = rates(before[2], self._before[2], self._interfaces, seconds)
        used, total = parse_meminfo(read_text(PROC / "meminfo")) or (None, None)
        disk = os.statvfs(self._home)
        return {
            "time": time.time(),
            "seconds": round(seconds, 3),
            "cpus": os.cpu_count(),
            "cpu_utilization": _rounded(busy(before[1], self._before[1]), 4),
            "load_1m": round(os.getloadavg()[0], 2),
            "memory_used_bytes": used,
            "memory_total_bytes": total,
            "interfaces": self._interfaces if sys.platform == "linux" else [],
            "received_bytes_per_s": _rounded(received),
            "sent_bytes_per_s": _rounded(sent),
            "disk_free_bytes": disk.f_bavail * disk.f_frsize,
            "gpus": self.gpus.read(),
        }


def _rounded(value: Optional[float], digits: int = 0) -> Optional[float]:
    return None if value is None else round(value, digits)


def routes(peers: Sequence[str]) -> List[str]:
    """The interfaces on the routes to the peers."""
    from remote.node.network import route_interface

    return sorted({name for name in map(route_interface, peers) if name})


def command_usage(request: Mapping[str, Any], output: BinaryIO) -> None:
    """`usage`: one sample after the other, every `every_s`; `samples` of them, or (`None`) until nobody reads.

    Network bytes are bytes of the interfaces on the routes to `peers` (addresses), or of all physical ones.
    """
    every_s, left = float(request["every_s"]), request["samples"]
    with closing(Sampler(every_s, routes(request["peers"]))) as sampler:
        began = time.monotonic()
        sampler.gpus.wait(FIRST_GPUS_S)
        due = max(began + FIRST_S, time.monotonic())
        while left is None or left > 0:
            time.sleep(max(0.0, due - time.monotonic()))
            frames.write(output, {"t": frames.USAGE, "usage": sampler.sample()})
            due = max(due + every_s, time.monotonic())
            left = None if left is None else left - 1


def line_s(written: int) -> float:
    """Return the time span of the next line, after this number of lines."""
    return float(FIRST_LINE_S * 2 ** (written // LINES_A_STEP))


def merge_samples(samples: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Merge several samples into one line: means over their time, the peak of memory, else the last value."""
    weights = [float(sample["seconds"]) for sample in samples]
    gpus = []
    for gpu in samples[-1]["gpus"] or []:
        same: List[Mapping[str, Any]] = [
            next((each for each in sample["gpus"] or [] if each["index"] == gpu["index"]), {})
            for sample in samples
        ]
        gpus.append(_merged(gpu, same, weights, GPU_MEANS))
    merged = _merged(samples[-1], samples, weights, MEANS)
    return dict(merged, seconds=round(sum(weights), 3), gpus=None if samples[-1]["gpus"] is None else gpus)


def _merged(
    last: Mapping[str, Any],
    all_of_them: Sequence[Mapping[str, Any]],
    weights: List[float],
    means: Sequence[str],
) -> Dict[str, Any]:
    pairs = list(zip(all_of_them, weights))
    merged = dict(last)
    for key in means:
        merged[key] = mean([(part.get(key), weight) for part, weight in pairs])
    used = [part["memory_used_bytes"] for part in all_of_them if part.get("memory_used_bytes") is not None]
    merged["memory_used_bytes"] = max(used) if used else None
    return merged


def mean(values: Sequence[Tuple[Optional[float], float]]) -> Optional[float]:
    """Return the mean of (value, weight) over known values; `None` without any."""
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return round(sum(value * weight for value, weight in known) / total, 4) if total > 0 else None


def begin_log(
    run_dir: Path,
    node: str,
    interfaces: Sequence[str],
    watch: Optional[GpuWatch] = None,
    gpus: Sequence[str] = (),
) -> None:
    """Keep the log from a process of its own until the run's supervisor has ended. Returns at once.

    `watch`: gets each sample. `gpus`: UUIDs of the run's; empty: all.

    A second call for the same run does nothing. A run is worth more than its log: where that can't be kept (no
    space, no process) it is missing, and nothing else happens.
    """
    supervisor = read_json(run_dir / "runner.json")
    if not supervisor:
        return
    try:
        (run_dir / USAGE).mkdir(mode=0o700)
        path = run_dir / USAGE / "{}.jsonl".format(node)
        process.detach(lambda: _keep_log(supervisor, path, interfaces, watch, gpus))
    except OSError:
        return


def _keep_log(
    supervisor: Mapping[str, Any],
    path: Path,
    interfaces: Sequence[str],
    watch: Optional[GpuWatch],
    gpus: Sequence[str],
) -> None:
    """Write the log until the supervisor has ended, or the disk is full; a watch looks on, whatever the disk."""
    os.nice(NICENESS)
    samples: List[Dict[str, Any]] = []
    written, running = 0, True
    handle = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    with closing(Sampler(GPU_TICK_S, interfaces, gpus)) as sampler:
        while running:
            running = process.lives_on(supervisor["pid"], supervisor["birth"], min(line_s(written), TICK_S))
            samples.append(sampler.sample())
            if watch is not None and running:
                watch.add(samples[-1])
            if not running or sum(sample["seconds"] for sample in samples) >= line_s(written):
                try:
                    os.write(handle, json.dumps(merge_samples(samples)).encode() + b"\n")
                except OSError:
                    if watch is None:
                        raise
                written += 1
                samples.clear()
    if watch is not None:
        watch.close()
