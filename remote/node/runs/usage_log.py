"""A run's `usage/NODE.jsonl`: the node's load, a line a stretch of time, written during the run."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from remote.node import process
from remote.node.runs.usage import Sampler
from remote.shared.constants import USAGE
from remote.shared.files import read_json

FIRST_LINE_S = 1.0
LINES_A_STEP = 256
"""After this number of lines a line is of twice the time: 2,048 lines last for 18 hours, 4,096 for half a year."""
TICK_S = 5.0
"""Samples are at most this far apart; a line is made of all that were taken in its time."""
GPU_TICK_S = 2.0
NICENESS = 10

MEANS = ("cpu_utilization", "load_1m", "received_bytes_per_s", "sent_bytes_per_s")
GPU_MEANS = ("utilization", "power_w")


def line_s(written: int) -> float:
    """Return the time span of the next line, after this number of lines."""
    return float(FIRST_LINE_S * 2 ** (written // LINES_A_STEP))


def merge(samples: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Merge several samples into one line: means over their time, the peak of memory, else the last value."""
    weights = [float(sample["seconds"]) for sample in samples]
    gpus = []
    for gpu in samples[-1]["gpus"] or []:
        same = [_same_gpu(sample["gpus"], gpu["index"]) for sample in samples]
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


def _same_gpu(gpus: Optional[Sequence[Mapping[str, Any]]], index: int) -> Mapping[str, Any]:
    return next((gpu for gpu in gpus or [] if gpu["index"] == index), {})


def mean(values: Sequence[Tuple[Optional[float], float]]) -> Optional[float]:
    """Return the mean of (value, weight) over known values; `None` without any."""
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return round(sum(value * weight for value, weight in known) / total, 4) if total > 0 else None


def begin(run_dir: Path, node: str, interfaces: Sequence[str]) -> None:
    """Keep the log from a process of its own until the run's supervisor has ended. Returns at once.

    A second call for the same run does nothing. A run is worth more than its log: where that can't be kept (no
    space, no process) it is missing, and nothing else happens.
    """
    supervisor = read_json(run_dir / "runner.json")
    if not supervisor:
        return
    try:
        (run_dir / USAGE).mkdir(mode=0o700)
        process.detach(lambda: _keep(supervisor, run_dir / USAGE / "{}.jsonl".format(node), interfaces))
    except OSError:
        return


def _keep(supervisor: Mapping[str, Any], path: Path, interfaces: Sequence[str]) -> None:
    """Write the log until the supervisor has ended, or the disk is full."""
    os.nice(NICENESS)
    samples: List[Dict[str, Any]] = []
    written, running = 0, True
    handle = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    with closing(Sampler(GPU_TICK_S, interfaces)) as sampler:
        while running:
            running = process.lives_on(supervisor["pid"], supervisor["birth"], min(line_s(written), TICK_S))
            samples.append(sampler.sample())
            if not running or sum(sample["seconds"] for sample in samples) >= line_s(written):
                os.write(handle, json.dumps(merge(samples)).encode() + b"\n")
                written += 1
                samples.clear()
