"""Compare the time of `gpuctl --help` with `python -c pass`, in pairs. Exits 1 if the median ratio is above 4.

    python bench/cli_startup.py [--pairs 40]

Uses the console script next to this interpreter if gpuctl is installed, else `python -m gpuctl` in the checkout. The
interpreter itself is measured with its environment's additions at every start: an editable install's import hook, for
one, costs `python -c pass` as much as it costs gpuctl. So the ratio is also taken against the interpreter without
these (`-I -S`), and the larger of the two counts.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 4.0
ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description="gpuctl --help against python -c pass")
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    script = Path(sys.executable).parent / "gpuctl"
    gpuctl = [str(script)] if script.exists() else [sys.executable, "-m", "gpuctl"]
    bare = [sys.executable, "-I", "-S", "-c", "pass"]
    usual = [sys.executable, "-c", "pass"]
    commands = ([*gpuctl, "--help"], usual, bare)
    with tempfile.TemporaryDirectory() as folder:
        # Where gpuctl is installed Python keeps its byte code, whatever this environment says.
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
            os.environ["PYTHONPYCACHEPREFIX"] = folder
        measured = [tuple(map(seconds, commands)) for _ in range(pairs + 1)][1:]
    ours, python, alone = (statistics.median(column) for column in zip(*measured, strict=True))
    ratio = statistics.median(ours / python for ours, python, _ in measured)
    strict = statistics.median(ours / alone for ours, _, alone in measured)
    print(f"{' '.join(gpuctl)} --help      {ours * 1000:6.1f} ms, median of {pairs}")
    print(f"python -c pass       {python * 1000:6.1f} ms   ratio {ratio:.2f}")
    print(f"python -I -S -c pass {alone * 1000:6.1f} ms   ratio {strict:.2f}")
    print(f"limit                             ratio {LIMIT:.2f}")
    return 0 if max(ratio, strict) <= LIMIT else 1


def seconds(command: list[str]) -> float:
    """Wall time of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
