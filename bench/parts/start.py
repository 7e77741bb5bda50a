"""Measure the whole time of `gpuctl train` for two short epochs, and of a hand-written script under torchrun."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("plain_start.py")
LIMIT_S = 300.0
"""For one command."""


def measure_start(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the wall times of both, seconds, in rounds of one after the other, and the parts of the last `train`.

    The first of either may be cold: `gpuctl_s[0]` includes sending the code. Raises RuntimeError if a command fails.
    """
    home = folder / "home"
    home.mkdir()
    gpuctl(home, "up", "--provider", "local", "--count", "1")
    try:
        pairs = [(_train(home), _by_hand(folder)) for _ in range(rounds)]
    finally:
        gpuctl(home, "down", "--yes")
    result = pairs[-1][0][1]
    return {
        "gpuctl_s": [seconds for (seconds, _), _ in pairs],
        "by_hand_s": [seconds for _, seconds in pairs],
        "ratio": statistics.median(ours / hand for (ours, _), hand in pairs),
        "seconds": result["seconds"],
        "first_step": result["train"]["first_step"],
        "parts": result["train"]["parts"],
    }


def tear_down(folder: Path) -> None:
    """Remove the local host of a `measure_start` that was cut off."""
    if (folder / "home").is_dir():
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            gpuctl(folder / "home", "down", "--yes")


def gpuctl(home: Path, *words: str) -> str:
    """Run gpuctl of this checkout, and return its output."""
    return _run([sys.executable, "-m", "gpuctl", *words], GPUCTL_HOME=str(home))


def _train(home: Path) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    printed = gpuctl(home, "train", "--json", "--", "--epochs", "2", "--threads", "1")
    return time.perf_counter() - began, json.loads(printed)


def _by_hand(folder: Path) -> float:
    began = time.perf_counter()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    _run([*torchrun, str(SCRIPT), str(folder / "model.pt")], OMP_NUM_THREADS="1")
    return time.perf_counter() - began


def _run(words: list[str], **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        words,
        cwd=variables.get("GPUCTL_HOME"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
