"""The job's command line. Imports nothing heavy: a mistyped option fails before torch is loaded."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import IO, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from train.models.gpt_sizes import GPT_SIZES
from train.models.names import unknown_network
from train.options import DEFAULT_LR, Options
from train.strategies import deepspeed_config
from train.strategies.degrees import SHARDED

FIRST_BUCKET_MB = 1
"""Size that torch.compile assumes for the first bucket of gradients, whatever DistributedDataParallel's setting."""


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read options from a command line (`sys.argv` unless given). Exits: 2 on bad input, 0 after `--help`."""
    parser = _parser()
    # A file of text is not a folder: --data is another name for --data-dir.
    words = [
        re.sub("^--data(?==|$)", "--data-dir", word) for word in (sys.argv[1:] if argv is None else argv)
    ]
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        name = unknown[0].split("=")[0]
        near = difflib.get_close_matches(name, [_flag(field.name) for field in fields(Options)], n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        parser.error(f"{name} is not an option of this job. {meant}All options: python -m train --help")
    # Parse once more, over marks in place of the defaults: which options were typed.
    untyped = object()
    known = argparse.Namespace(**{field.name: untyped for field in fields(Options)})
    read = vars(parser.parse_args(words, known))
    typed = {name for name, value in read.items() if value is not untyped}
    if (wrong := deepspeed_config.take_over(parsed, typed)) is not None:
        parser.error(wrong)
    size = GPT_SIZES.get(parsed.model)
    if parsed.lr is None:
        parsed.lr = DEFAULT_LR[parsed.optimizer] if size is None or parsed.optimizer == "sgd" else size.lr
    if parsed.dataset is None:
        parsed.dataset = "text" if size else Options.dataset
    options = Options(**vars(parsed))
    if (problem := conflict(options)) is not None:
        parser.error(problem)
    return options


def conflict(options: Options) -> str | None:
    """Return the first conflict between options that are each valid."""
    if (no_network := unknown_network(options.model)) is not None:
        return f"--model {no_network}"
    if (problem := _problem_of_text(options) or deepspeed_config.problem(options)) is not None:
        return problem
    if options.grow_batch and options.schedule != "plateau":
        return "--grow-batch needs --schedule plateau, which says when."
    if options.batch_size is not None and options.global_batch_size is not None:
        return "--batch-size is of a rank, --global-batch-size of all ranks together: give one of them."
    if options.data_pipeline == "ray" and options.dataset != "folder":
        return (
            f"--data-pipeline ray reads images from files, and --dataset {options.dataset} has none: give --dataset "
            "folder, or leave --data-pipeline out."
        )
    if options.lr_scaling != "none" and options.global_batch_size is not None:
        return (
            f"--lr-scaling {options.lr_scaling} is for a batch that grows with the ranks, and --global-batch-size "
            "does not: leave one of them out."
        )
    if options.warmup_epochs >= options.epochs:
        return (
            f"--warmup-epochs {options.warmup_epochs:g} is all of --epochs {options.epochs}: the learning rate would "
            "only rise. Give fewer."
        )
    if options.compression == "powersgd" and options.precision == "fp16":
        return "--compression powersgd keeps what overflows, as fp16's gradients do: take --precision bf16."
    split = next((f"--{name}" for name in ("tp", "pp") if (getattr(options, name) or 1) > 1), None)
    if split is not None and options.strategy in ("dp", "zero1"):
        return f"{split} is not for --strategy {options.strategy}: take ddp, fsdp or hsdp."
    if options.strategy in ("tp", "pp"):
        split = f"--strategy {options.strategy}"
    if split is not None and options.precision == "fp16":
        return f"{split} has no way for fp16's scaled gradients: take --precision bf16."
    if (problem := _problem_of_parts(options)) is not None:
        return problem
    # They have no meaning with another strategy, or torch does not support them there.
    ddp_only = {
        "--compile": options.compile,
        "--compression": options.compression != "none",
        "--bucket-mb": options.bucket_mb is not None,
    }
    if (option := next((name for name, is_given in ddp_only.items() if is_given), None)) is not None:
        if split is not None:
            return f"{option} is not for {split}: leave one of them out."
        if options.strategy != "ddp":
            return f"{option} is for --strategy ddp, not for {options.strategy}: leave one of them out."
    if options.compile and options.bucket_mb is not None and options.bucket_mb < FIRST_BUCKET_MB:
        return (
            f"--compile divides the network as the gradients are sent, the first {FIRST_BUCKET_MB} MiB by themselves."
            f" Give --bucket-mb {FIRST_BUCKET_MB} or more."
        )
    return None


def _problem_of_text(options: Options) -> str | None:
    """Return the first conflict of the options for text."""
    size = GPT_SIZES.get(options.model)
    if (options.dataset == "text") != (size is not None):
        if size is not None:
            return f"--model {options.model} is for text, and --dataset {options.dataset} has images: leave one out."
        return f"--dataset text is for the text models, not for {options.model}: give one, such as gpt-10m."
    if size is None:
        return None if options.tokenizer is None else "--tokenizer is for --dataset text: leave it out."
    if options.seq_len > size.context:
        return (
            f"--seq-len {options.seq_len} is more than {options.model} takes: give at most {size.context}, or a "
            "larger model."
        )
    unsuitable = {
        "--stem": options.stem != Options.stem,
        "--augmentation": options.augmentation not in ("auto", "none"),
        "--metrics": options.metrics not in (Options.metrics, ("loss",)),
    }
    if option := next((name for name, is_given in unsuitable.items() if is_given), None):
        return f"{option} is for images, not for --dataset text: leave it out."
    return None


def _problem_of_parts(options: Options) -> str | None:
    """Return the first conflict of the options for sharded weights."""
    sharded_only = {"--cpu-offload": options.cpu_offload, "--prefetch": options.prefetch is not None}
    option = next((name for name, is_given in sharded_only.items() if is_given), None)
    if option is not None and options.strategy not in SHARDED:
        return (
            f"{option} is for strategies with parts of the weights, not for {options.strategy}: take fsdp, hsdp or "
            "zero2."
        )
    if options.cpu_offload and options.precision == "fp16":
        return "--cpu-offload has no way for fp16's scaled gradients: take --precision bf16."
    return None


class _Parser(argparse.ArgumentParser):
    """Shows usage and help on rank 0 alone.

    An error is shown by every rank: the first rank to end stops the others, and its log must say why.
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
        description="Data-parallel training on images or text. Under torchrun every rank trains on its share of it, "
        "and the ranks average their gradients (DistributedDataParallel). Without torchrun it is one process.",
        epilog="Rank 0 writes artifacts/model.pt and checkpoints/ in $GPUCTL_RUN_DIR, or in the current folder if "
        "that is not set, and resumes from the latest checkpoint there. Every rank appends JSON lines to the file "
        "$GPUCTL_METRICS, if that is set.",
        allow_abbrev=False,
    )
    for title, options in option_groups().items():
        group = parser.add_argument_group(title)
        for flag, arguments in options.items():
            group.add_argument(flag, **arguments)
    return parser


def option_groups() -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the options of each group, and argparse's arguments for each; its help names the default."""
    types = get_type_hints(Options)
    groups: dict[str, dict[str, Mapping[str, Any]]] = {}
    for field in fields(Options):
        group = groups.setdefault(field.metadata["group"], {})
        group[_flag(field.name)] = _arguments(field, types[field.name])
    return groups


def _arguments(field: Field[Any], kind: object) -> Mapping[str, Any]:
    """Return argparse's arguments for an option; its help names the default if it has one."""
    arguments = {
        key: value for key, value in field.metadata.items() if key not in ("group", "argument_default")
    }
    default = field.metadata.get("argument_default", field.default)
    shown = default
    if kind is bool:
        arguments["action"] = argparse.BooleanOptionalAction
        shown = _flag(field.name) if default else f"--no-{_flag(field.name)[2:]}"
    elif isinstance(default, tuple):
        shown = ",".join(map(str, default))
    if get_origin(kind) is Literal:
        arguments["choices"] = get_args(kind)
    if default is not None:
        arguments["help"] = f"{arguments['help'].removesuffix('.')} (default: {shown})."
    return {"default": default, **arguments}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
