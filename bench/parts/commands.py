"""Run gpuctl and other commands for a benchmark, and compare times in rounds. Standard library only."""

import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
GPUCTL = [str(BIN / "gpuctl")] if (BIN / "gpuctl").exists() else [sys.executable, "-m", "gpuctl"]
LIMIT_S = 300.0
"""Timeout of a command."""
T = TypeVar("T")


def run(
    words: Sequence[str], *, cwd: Path | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command with more environment variables. Ends the program if the command fails."""
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{shlex.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done


def gpuctl(home: Path, *words: str, cwd: Path | None = None) -> str:
    """Run gpuctl with its files in `home`, and return its standard output. Ends the program if gpuctl fails."""
    checkout = {"PYTHONPATH": str(ROOT)} if len(GPUCTL) > 1 else {}
    return run([*GPUCTL, *words], cwd=cwd, GPUCTL_HOME=str(home), **checkout).stdout


def keep_byte_code(folder: str) -> None:
    """Let Python keep its byte code, as for an installed gpuctl, whatever this environment's setting."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = folder


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds that a function takes, and its result."""
    began = time.perf_counter()
    value = work()
    return time.perf_counter() - began, value


def turned(items: Sequence[T], number: int) -> list[T]:
    """Return the items in the order of the round of that number: another item comes first in each round."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median ratio over the rounds."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def spread(values: Sequence[float], digits: int, rest: str) -> str:
    """Return the median and, in brackets, the range and the rest: `0.92 (min 0.88, max 1.01, 7 pairs)`."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} (min {low:.{digits}f}, max {high:.{digits}f}, {rest})"
