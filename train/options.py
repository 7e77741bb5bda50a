"""The job's command line, as a value. Imports nothing heavy: a mistyped option fails before torch is loaded."""

import argparse
import difflib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import IO, Literal, NoReturn, get_args

Model = Literal["cnn", "mlp"]
Dataset = Literal["digits"]
Optimizer = Literal["adam", "sgd"]
Device = Literal["auto", "cpu", "cuda"]

DEFAULT_LR: dict[Optimizer, float] = {"adam": 3e-3, "sgd": 0.05}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train and how; the same on every rank."""

    model: Model = "cnn"
    dataset: Dataset = "digits"
    epochs: int = 10
    batch_size: int = 64
    """Samples a step and rank: a step of all ranks together takes this times their number."""
    optimizer: Optimizer = "adam"
    lr: float = DEFAULT_LR["adam"]
    seed: int = 0
    log_every: int = 10
    """Steps between two step lines in the metrics file."""
    device: Device = "auto"
    threads: int | None = None
    """CPU threads of this rank; None: as many as `train.distributed.cpu_threads` finds fair."""
    timeout_s: float = 120.0
    """Deadline of the rendezvous and of each collective operation."""
    save: bool = True
    """Whether rank 0 writes the trained model."""


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from a command line (`sys.argv` unless given). Exits: 2 on bad input, 0 after `--help`."""
    parser = _parser()
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(_not_an_option(unknown[0]))
    if found.lr is None:
        found.lr = DEFAULT_LR[found.optimizer]
    return Options(**vars(found))


class _Parser(argparse.ArgumentParser):
    """Shows usage and help on rank 0 alone.

    An error's sentence is shown by every rank: the first rank to end stops the others, and its log must say why.
    """

    def print_usage(self, file: IO[str] | None = None) -> None:  # type: ignore[override]
        if os.environ.get("RANK", "0") == "0":
            super().print_usage(file)

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"error: {message}\n")


def _parser() -> _Parser:
    default = Options()
    parser = _Parser(
        prog="python -m train",
        description="Data-parallel training on small real images. Under torchrun every rank trains on its share of "
        "the images and the ranks average their gradients (DistributedDataParallel); without torchrun it is one "
        "plain process.",
        epilog="Rank 0 writes artifacts/model.pt in $GPUCTL_RUN_DIR, or in the current folder if that is not set. "
        "Every rank appends JSON lines to the file $GPUCTL_METRICS, if that is set.",
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to train")
    what.add_argument(
        "--model",
        choices=get_args(Model),
        default=default.model,
        help="a small convolutional network or a fully connected one (default: %(default)s)",
    )
    what.add_argument(
        "--dataset",
        choices=get_args(Dataset),
        default=default.dataset,
        help="digits: the 1,797 handwritten digits that scikit-learn carries (default: %(default)s)",
    )
    how = parser.add_argument_group("how to train")
    how.add_argument(
        "--epochs",
        type=_whole_number(1),
        default=default.epochs,
        metavar="N",
        help="passes over the training images (default: %(default)s)",
    )
    how.add_argument(
        "--batch-size",
        type=_whole_number(1),
        default=default.batch_size,
        metavar="N",
        help="images a step on each rank, so that N ranks take N times as many (default: %(default)s)",
    )
    how.add_argument(
        "--optimizer", choices=get_args(Optimizer), default=default.optimizer, help="(default: %(default)s)"
    )
    how.add_argument(
        "--lr",
        type=_positive_number(at_most=1e6),
        metavar="X",
        help="learning rate (default: "
        + ", ".join(f"{lr:g} for {name}" for name, lr in DEFAULT_LR.items())
        + ")",
    )
    how.add_argument(
        "--seed",
        type=_whole_number(0),
        default=default.seed,
        metavar="N",
        help="of the first weights and of the order of the images: on CPUs, two runs with the same seed, ranks and "
        "threads have the same losses to the last bit (default: %(default)s)",
    )
    where = parser.add_argument_group("where to run")
    where.add_argument(
        "--device",
        choices=get_args(Device),
        default=default.device,
        help="auto: GPUs if this host has any (default: %(default)s)",
    )
    where.add_argument(
        "--threads",
        type=_whole_number(1),
        metavar="N",
        help="CPU threads a rank (default: $OMP_NUM_THREADS, else this machine's cores divided by the ranks on it)",
    )
    where.add_argument(
        "--timeout-s",
        type=_positive_number(at_most=86_400),
        default=default.timeout_s,
        metavar="S",
        help="give up when the other ranks are silent for that many seconds (default: %(default)g)",
    )
    out = parser.add_argument_group("what comes out")
    out.add_argument(
        "--log-every",
        type=_whole_number(1),
        default=default.log_every,
        metavar="N",
        help="steps between two lines in the metrics file (default: %(default)s)",
    )
    out.add_argument(
        "--save",
        action=argparse.BooleanOptionalAction,
        default=default.save,
        help="write the trained model (default: --save)",
    )
    return parser


def _whole_number(at_least: int, at_most: int = 2**31 - 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not at_least <= number <= at_most:
            raise argparse.ArgumentTypeError(
                f"{text!r} can't be used: give a whole number from {at_least} to {at_most}."
            )
        return number

    return read


def _positive_number(at_most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number <= at_most:  # also refuses nan
            raise argparse.ArgumentTypeError(
                f"{text!r} can't be used: give a number above 0, at most {at_most:g}."
            )
        return number

    return read


def _not_an_option(argument: str) -> str:
    """The sentence for something that the parser does not know."""
    name = argument.split("=")[0]
    near = difflib.get_close_matches(
        name, [f"--{field.name.replace('_', '-')}" for field in fields(Options)], n=1
    )
    meant = f"Did you mean {near[0]}? " if near else ""
    return f"{name} is not an option of this job. {meant}All options: python -m train --help"
