"""Compare the time of `gpuctl --help` with `python -c pass`, in pairs. Exits 1 if the median ratio is above 4.

    python bench/cli_startup.py [--pairs 40]

Uses the console script next to this interpreter if gpuctl is installed, else `python -m gpuctl` in the checkout. The
interpreter itself is measured with its environment's additions at every start: an editable install's import hook, for
one, costs `python -c pass` as much as it costs gpuctl. So the ratio is also taken against the interpreter without
these (`-I -S`), and the larger of the two counts.
"""

import argparse
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.commands import GPUCTL, ROOT, keep_byte_code, median_ratio, run, timed

LIMIT = 4.0


def main() -> int:
    parser = argparse.ArgumentParser(description="gpuctl --help against python -c pass")
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    bare = [sys.executable, "-I", "-S", "-c", "pass"]
    usual = [sys.executable, "-c", "pass"]
    commands = ([*GPUCTL, "--help"], usual, bare)
    with tempfile.TemporaryDirectory() as folder:
        keep_byte_code(folder)
        measured = [[timed(partial(run, words, cwd=ROOT))[0] for words in commands] for _ in range(pairs + 1)]
    columns = list(zip(*measured[1:], strict=True))
    ours, python, alone = map(statistics.median, columns)
    ratio, strict = (median_ratio(columns[0], other) for other in columns[1:])
    print(f"{' '.join(GPUCTL)} --help      {ours * 1000:6.1f} ms, median of {pairs}")
    print(f"python -c pass       {python * 1000:6.1f} ms   ratio {ratio:.2f}")
    print(f"python -I -S -c pass {alone * 1000:6.1f} ms   ratio {strict:.2f}")
    print(f"limit                             ratio {LIMIT:.2f}")
    return 0 if max(ratio, strict) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
