"""Compare the ranges of `gpuctl advise` with measured steps, on simulated machines on this computer.

The kernel slows down the links, and each layer takes as long as on a GPU of a known rate. The data sheet's figures
are such that these rates are in the middle of the arithmetic's assumptions. The job is the real one, with each
strategy. Exits 1 if fewer than nine of ten measured steps are in their range, or a range is wider than 1.6 times.

    sudo python bench/advise.py [NAME ...]
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.parts.planted import Planted, lacking, measured_step_s
from train.advice.question import question_of
from train.advice.rows import rows

WIDEST, LEAST_SHARE = 1.602, 0.9
SEQ_LEN, STEPS = 16, 8
MODEL = ("--model", "gpt-10m", "--seq-len", str(SEQ_LEN))
WITHOUT_FILES = (
    "--checkpoint-every",
    "0",
    "--no-save",
    "--no-tensorboard",
    "--device",
    "cpu",
    "--epochs",
    "1",
)
FLOPS_OF_A_SEQUENCE = 1.05e9
"""Approximate operations of the model for a sequence, both passes."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Machines, and the job's options on them."""

    planted: Planted
    words: str
    batch: int = 8
    """Sequences of a step of all ranks."""


def planted(
    count: int, ranks: int, *, compute_s: float, batch: int = 8, between: float = 0.0, within: float = 0.0
) -> Planted:
    """Describe machines whose ranks together compute a step in `compute_s`. Links: 10**6 bytes a second."""
    rate = FLOPS_OF_A_SEQUENCE * batch / (count * ranks * compute_s)
    return Planted(count=count, ranks=ranks, rate=rate, between_mb_s=between, within_mb_s=within)


CASES: Mapping[str, Case] = {
    "ddp, hidden": Case(planted=planted(2, 1, compute_s=1.5, between=60), words="--strategy ddp"),
    "ddp, shown": Case(planted=planted(2, 1, compute_s=0.8, between=30), words="--strategy ddp"),
    "ddp, accumulated": Case(
        planted=planted(2, 1, compute_s=1.2, between=40),
        words="--strategy ddp --gradient-accumulation-steps 4",
    ),
    "ddp, 2 x 2": Case(planted=planted(2, 2, compute_s=1.2, between=40, within=100), words="--strategy ddp"),
    "zero1": Case(planted=planted(2, 1, compute_s=1.0, between=50), words="--strategy zero1"),
    "zero2": Case(planted=planted(2, 1, compute_s=1.0, between=50), words="--strategy zero2"),
    "fsdp": Case(planted=planted(2, 1, compute_s=1.0, between=60), words="--strategy fsdp"),
    "hsdp": Case(planted=planted(2, 2, compute_s=1.2, between=40, within=80), words="--strategy hsdp"),
    "tp": Case(planted=planted(1, 2, compute_s=1.0, within=8), words="--strategy tp"),
    "pp": Case(planted=planted(2, 1, compute_s=1.0, between=10), words="--strategy pp"),
    "tp x ddp": Case(
        planted=planted(2, 2, compute_s=1.2, between=40, within=10), words="--strategy tp --tp 2"
    ),
    "pp x fsdp": Case(
        planted=planted(2, 2, compute_s=1.2, between=20, within=60), words="--strategy fsdp --pp 2"
    ),
}


def main() -> int:
    """Print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description="the ranges of gpuctl advise against measured steps")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"cases (default: all): {'; '.join(CASES)}")
    names = parser.parse_args().names or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"no case {'; '.join(sorted(unknown))}: give some of {'; '.join(CASES)}")
    if lacks := lacking():
        print(f"left out: planted machines need {lacks}")
        return 0
    print(f"gpt-10m, sequences of {SEQ_LEN}; seconds of a step:")
    within = 0
    widest = 0.0
    for name in names:
        (low, high), measured = compare(CASES[name])
        fits = low <= measured <= high
        within += fits
        widest = max(widest, high / low)
        verdict = "" if fits else "  outside"
        print(
            f"  {name:18} {low:6.2f} to {high:5.2f} (x {high / low:.2f}), measured {measured:5.2f}, "
            f"{measured / (low * high) ** 0.5:.2f} of the middle{verdict}",
            flush=True,
        )
    good = within >= LEAST_SHARE * len(names) and widest <= WIDEST
    print(
        f"  {within} of {len(names)} in their range, the widest x {widest:.2f}: {'kept' if good else 'missed'}"
    )
    return int(not good)


def compare(case: Case) -> tuple[tuple[float, float], float]:
    """Return the advised range and the measured time."""
    machines = case.planted.machines
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        # A tenth is not trained on.
        text.write_text("planted " * (case.batch * SEQ_LEN * STEPS // 7))
        words = (*MODEL, "--global-batch-size", str(case.batch), *case.words.split(), *WITHOUT_FILES)
        question = question_of((*words, "--data-dir", str(text)), batch_tokens=None, tokens=None)
        [row] = rows(question, [machines])
        if row.step_s is None:
            raise SystemExit(f"no advice: {row.reason}")
        tp = int(row.words[row.words.index("--tp") + 1]) if "--tp" in row.words else 1
        return row.step_s, measured_step_s(case.planted, row.words, tp)


if __name__ == "__main__":
    sys.exit(main())
