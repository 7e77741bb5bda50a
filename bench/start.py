"""Compare the whole time of `gpuctl train -- --epochs 2` with a hand-written DDP script under torchrun.

Both train a small CNN on scikit-learn's digits for two epochs with one rank, validate after each, and write the
weights. gpuctl also checks the machine, sends the code, and brings metrics and results back. Prints the median ratio
of the wall times and the parts of the last run; exits 1 above 1.2.

    python bench/start.py [ROUNDS]
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.parts.start import measure_start

LIMIT = 1.2


def main() -> int:
    parser = argparse.ArgumentParser(description="gpuctl train against a script under torchrun")
    parser.add_argument("rounds", nargs="?", type=int, default=5, help="pairs of runs (default: 5)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        measured = measure_start(Path(folder), rounds)
    for number, (ours, hand) in enumerate(zip(measured["gpuctl_s"], measured["by_hand_s"], strict=True), 1):
        print(f"round {number}: gpuctl {ours:.2f} s, by hand {hand:.2f} s")
    for title in ("seconds", "first_step", "parts"):
        print(f"{title}: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in measured[title].items()))
    print(f"gpuctl train / by hand: median ratio {measured['ratio']:.3f} ({rounds} rounds, limit {LIMIT})")
    return 0 if measured["ratio"] <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
