"""The job's command line. Imports nothing heavy: a mistyped option fails before torch is loaded."""

import argparse
import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import IO, Any, NoReturn, get_args

from train.networks import unknown_network
from train.options import (
    DEFAULT_LR,
    Augmentation,
    Compression,
    DataPipeline,
    DatasetName,
    Device,
    Loop,
    LrScaling,
    Optimizer,
    Options,
    Precision,
    Schedule,
    Stem,
)

SYNTHETIC_FORM = "N,CHANNELS,HEIGHT,WIDTH,CLASSES"
FIRST_BUCKET_MB = 1
"""What torch.compile takes the first bucket of gradients to have, whatever DistributedDataParallel is told."""


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from a command line (`sys.argv` unless given). Exits: 2 on bad input, 0 after `--help`."""
    parser = _parser()
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(_not_an_option(unknown[0]))
    if (no_network := unknown_network(found.model)) is not None:
        parser.error(f"--model {no_network}")
    if found.lr is None:
        found.lr = DEFAULT_LR[found.optimizer]
    if found.grow_batch and found.schedule != "plateau":
        parser.error("--grow-batch needs --schedule plateau, which says when.")
    if found.batch_size is not None and found.global_batch_size is not None:
        parser.error(
            "--batch-size is of a rank, --global-batch-size of all ranks together: give one of them."
        )
    if found.data_pipeline == "ray" and found.dataset != "folder":
        parser.error(
            f"--data-pipeline ray streams pictures from their files, and --dataset {found.dataset} has none: give "
            "--dataset folder, or leave --data-pipeline out."
        )
    if found.lr_scaling != "none" and found.global_batch_size is not None:
        parser.error(
            f"--lr-scaling {found.lr_scaling} is for a batch that grows with the ranks, and --global-batch-size does "
            "not: leave one of them out."
        )
    if found.warmup_epochs >= found.epochs:
        parser.error(
            f"--warmup-epochs {found.warmup_epochs:g} is all of --epochs {found.epochs}: the learning rate would "
            "only rise. Give fewer."
        )
    if found.compression == "powersgd" and found.precision == "fp16":
        parser.error(
            "--compression powersgd keeps what overflows, as fp16's gradients do: take --precision bf16."
        )
    if found.compile and found.bucket_mb is not None and found.bucket_mb < FIRST_BUCKET_MB:
        parser.error(
            f"--compile divides the network as the gradients are sent, the first {FIRST_BUCKET_MB} MiB by themselves."
            f" Give --bucket-mb {FIRST_BUCKET_MB} or more."
        )
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
        self.exit(2, f"error: {re.sub('^argument ', 'Argument ', message)}\n")  # argparse's own begin small


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m train",
        usage="python -m train [OPTIONS]",
        description="Data-parallel training on images. Under torchrun every rank trains on its share of "
        "the images and the ranks average their gradients (DistributedDataParallel); without torchrun it is one "
        "plain process.",
        epilog="Rank 0 writes artifacts/model.pt and checkpoints/ in $GPUCTL_RUN_DIR, or in the current folder if "
        "that is not set, and resumes from the last checkpoint that it finds there. Every rank appends JSON lines to "
        "the file $GPUCTL_METRICS, if that is set.",
        allow_abbrev=False,
    )
    _what(_Group(parser, "what to train"))
    _how(_Group(parser, "how to train"))
    _speed(_Group(parser, "speed"))
    _where(_Group(parser, "where to run"))
    _out(_Group(parser, "what comes out"))
    return parser


class _Group:
    """A group of options whose defaults are those of `Options`."""

    def __init__(self, parser: argparse.ArgumentParser, title: str) -> None:
        self._group = parser.add_argument_group(title)

    def add(self, flag: str, text: str, **how: Any) -> None:  # noqa: ANN401 - argparse's own
        """An option, by default what `Options` has; the help says so where that says something."""
        default = getattr(Options(), flag.removeprefix("--").replace("-", "_"))
        shown = "" if default is None or default == () else " (default: %(default)s)"
        self._group.add_argument(flag, **{"default": default, "help": text + shown, **how})

    def choice(self, flag: str, kind: object, text: str) -> None:
        """One of a `Literal`'s values."""
        self.add(flag, text, choices=get_args(kind))

    def switch(self, flag: str, text: str) -> None:
        """`--flag` or `--no-flag`."""
        name = flag.removeprefix("--").replace("-", "_")
        word = flag if getattr(Options(), name) else f"--no-{flag.removeprefix('--')}"
        self.add(flag, text, action=argparse.BooleanOptionalAction, help=f"{text} (default: {word})")


def _what(group: _Group) -> None:
    group.add("--model", "cnn, mlp, resnet18, or another network of torchvision by its name", metavar="NAME")
    group.choice("--stem", Stem, "first layers of a residual network; cifar: 3x3, for small images")
    group.choice(
        "--dataset",
        DatasetName,
        "digits: the 1,797 handwritten digits that scikit-learn carries; folder: train/CLASS/*.png in --data-dir",
    )
    group.add(
        "--data-dir",
        "where datasets lie on the nodes (default: $GPUCTL_DATA_DIR, else ~/.cache/gpuctl/data)",
        metavar="DIR",
    )
    group.switch("--download", "download a dataset that is not there, once a node")
    group.choice(
        "--data-pipeline",
        DataPipeline,
        "memory: every rank reads all images before it begins; ray: Ray Data reads those to train on while they are "
        "trained on, on all nodes, for --dataset folder with gpuctl train --mode ray; the others stay in memory",
    )
    group.add(
        "--synthetic",
        f"what --dataset synthetic makes: {SYNTHETIC_FORM}",
        type=_synthetic,
        metavar="SIZES",
        help=f"what --dataset synthetic makes: {SYNTHETIC_FORM} (default: 10000,3,32,32,10)",
    )
    group.add(
        "--image-size", "side of the images of a folder, pixels", type=_whole_number(8, 4096), metavar="N"
    )
    group.add(
        "--validation",
        "fraction of the training images to judge by instead of training on it",
        type=_fraction,
        metavar="F",
    )
    group.choice("--augmentation", Augmentation, "flip: mirrored at random; crop: that, and shifted")


def _how(group: _Group) -> None:
    group.add("--epochs", "passes over the training images", type=_whole_number(1), metavar="N")
    group.add(
        "--batch-size",
        "images a step on each rank, so that N ranks take N times as many (default: 64, or all that a rank has)",
        type=_whole_number(1),
        metavar="N",
    )
    group.add(
        "--global-batch-size",
        "images a step of all ranks together, in place of --batch-size",
        type=_whole_number(1),
        metavar="N",
    )
    group.add(
        "--accumulate", "parts a batch is computed in, to save memory", type=_whole_number(1), metavar="N"
    )
    group.choice("--optimizer", Optimizer, "how the weights follow the gradients")
    rates = ", ".join(f"{lr:g} for {name}" for name, lr in DEFAULT_LR.items())
    group.add(
        "--lr", f"learning rate (default: {rates})", type=_number(above=0, at_most=1e6), metavar="X",
        default=None, help=f"learning rate (default: {rates})",
    )  # fmt: skip
    group.add(
        "--weight-decay",
        "a step's pull of the weights to 0",
        type=_number(at_least=0, at_most=1e6),
        metavar="X",
    )
    group.choice(
        "--schedule", Schedule, "of the learning rate; plateau: falls where the validation loss stalls"
    )
    group.add(
        "--warmup-epochs",
        "the learning rate rises over the first so many epochs",
        type=_number(at_least=0, at_most=1e6),
        metavar="X",
    )
    group.choice("--lr-scaling", LrScaling, "how the learning rate grows with the number of ranks")
    group.switch(
        "--grow-batch",
        "with --schedule plateau: the batch grows where the learning rate would fall, at most 16-fold",
    )
    group.add("--clip", "largest norm of the gradients", type=_number(above=0, at_most=1e6), metavar="X")
    group.add("--label-smoothing", "how much of a label goes to all classes", type=_fraction, metavar="F")
    group.choice("--precision", Precision, "of the arithmetic; bf16 and fp16: autocast")
    group.add(
        "--seed",
        "of the first weights and of the order of the images: on CPUs, two runs with the same seed, ranks and "
        "threads have the same losses to the last bit",
        type=_whole_number(0),
        metavar="N",
    )


def _speed(group: _Group) -> None:
    group.choice(
        "--loop",
        Loop,
        "fast: data on the device, channels innermost, fused optimizer; plain: the textbook loop, the same losses",
    )
    group.switch(
        "--compile",
        "torch.compile for the whole step: network, loss, backward pass, clipping and, but with fp16, the "
        "optimizer; the first steps take a minute or so",
    )
    group.choice("--compression", Compression, "of the gradients on the network")
    group.add(
        "--bucket-mb",
        "gradients averaged at once, MiB (default: 1 for the first, then 25)",
        type=_number(above=0, at_most=1e6),
        metavar="X",
    )


def _where(group: _Group) -> None:
    group.choice("--device", Device, "auto: GPUs if this host has any, which then have to work")
    group.add(
        "--threads",
        "CPU threads a rank (default: $OMP_NUM_THREADS, else this machine's cores divided by the ranks on it)",
        type=_whole_number(1),
        metavar="N",
    )
    group.add(
        "--timeout-s",
        "give up when the other ranks are silent for that many seconds",
        type=_number(above=0, at_most=86_400),
        metavar="S",
    )


def _out(group: _Group) -> None:
    group.add(
        "--checkpoint-every",
        "epochs between two checkpoints, beside the one at the end; 0: none at all (default: after an epoch, at "
        "least half a minute apart)",
        type=_number(at_least=0, at_most=1e6),
        metavar="X",
    )
    group.add("--keep-checkpoints", "how many are kept", type=_whole_number(1), metavar="N")
    group.add(
        "--metrics",
        "of torchmetrics, separated by commas: accuracy, f1, top5, …",
        type=_names,
        metavar="NAMES",
        help="of torchmetrics, separated by commas: accuracy, f1, top5, … (default: accuracy)",
    )
    group.switch("--tensorboard", "write TensorBoard's event files, where its package is installed")
    group.add(
        "--log-every", "steps between two lines in the metrics file", type=_whole_number(1), metavar="N"
    )
    group.switch("--save", "write the trained model")


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


def _number(
    *, at_most: float, above: float | None = None, at_least: float | None = None
) -> Callable[[str], float]:
    least = f"above {above:g}" if above is not None else f"from {at_least:g}"

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        low = number > above if above is not None else number >= (at_least or 0.0)
        if not (low and number <= at_most):  # also refuses nan
            raise argparse.ArgumentTypeError(
                f"{text!r} can't be used: give a number {least}, at most {at_most:g}."
            )
        return number

    return read


def _fraction(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} can't be used: give a fraction from 0, below 1.")
    return number


def _synthetic(text: str) -> tuple[int, ...]:
    sizes = [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if len(sizes) != 5 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} can't be used: give five whole numbers, {SYNTHETIC_FORM}, such as 10000,3,32,32,10."
        )
    return tuple(sizes)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(
            f"{text!r} can't be used: give different names, separated by commas."
        )
    return names


def _not_an_option(argument: str) -> str:
    """The sentence for something that the parser does not know."""
    name = argument.split("=")[0]
    near = difflib.get_close_matches(
        name, [f"--{field.name.replace('_', '-')}" for field in fields(Options)], n=1
    )
    meant = f"Did you mean {near[0]}? " if near else ""
    return f"{name} is not an option of this job. {meant}All options: python -m train --help"
