"""Measure the whole time of `gpuctl train` for two short epochs, and of a hand-written script under torchrun."""

import contextlib
import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.parts.commands import gpuctl, median_ratio, run, timed

SCRIPT = Path(__file__).with_name("plain_start.py")


def measure_start(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the wall times of both, seconds, in rounds of one after the other, and the parts of the last `train`.

    The first of either may be cold: `gpuctl_s[0]` includes sending the code. Raises SystemExit if a command fails.
    """
    home = folder / "home"
    home.mkdir()
    words = ("train", "--json", "--", "--epochs", "2", "--threads", "1")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    by_hand = [*torchrun, str(SCRIPT), str(folder / "model.pt")]
    gpuctl(home, "up", "--provider", "local", "--count", "1", cwd=home)
    try:
        ours, hand = [], []
        for _ in range(rounds):
            ours.append(timed(partial(gpuctl, home, *words, cwd=home)))
            hand.append(timed(partial(run, by_hand, OMP_NUM_THREADS="1"))[0])
    finally:
        _remove(home)
    result = json.loads(ours[-1][1])
    gpuctl_s = [seconds for seconds, _ in ours]
    return {
        "gpuctl_s": gpuctl_s,
        "by_hand_s": hand,
        "ratio": median_ratio(gpuctl_s, hand),
        "seconds": result["seconds"],
        "first_step": result["train"]["first_step"],
        "parts": result["train"]["parts"],
    }


def tear_down(folder: Path) -> None:
    """Remove the local host of a `measure_start` that was cut off."""
    if (folder / "home").is_dir():
        with contextlib.suppress(SystemExit, subprocess.TimeoutExpired):
            _remove(folder / "home")


def _remove(home: Path) -> None:
    gpuctl(home, "down", "--yes", cwd=home)
    shutil.rmtree(home)
