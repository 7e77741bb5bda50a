"""Advice on a run's failure, in addition to its sentence."""

import re
from collections.abc import Collection
from pathlib import Path

from gpuctl.run_results.failures.log_errors import path_not_found
from gpuctl.run_results.missing import how_to_bring
from gpuctl.run_results.missing.files import not_here
from gpuctl.run_results.missing.written import train_line, written_elsewhere
from gpuctl.run_results.saved_results import args_of, launch_of
from gpuctl.scripts.misplaced import how_to_move
from gpuctl.scripts.sources import reads_at
from gpuctl.text import clean
from inventories.runs.end_reasons import Cause, Reason
from inventories.runs.run import Result, Run

SHARDED = ("fsdp", "zero3")
"""Strategies that divide all that a rank keeps among all ranks."""
SPLIT = ("tp", "pp")
"""Strategies that divide layers, or the network into stages."""
OF_DDP = ("--compile", "--compression", "--bucket-mb")
"""Options that the job refuses with another strategy than ddp."""
RECOMPUTING = "--activation-checkpointing"
WITHOUT_BLOCKS = ("cnn", "mlp", "alexnet", "inception_v3", "vgg")
"""Beginnings of the names of networks that repeat no block, for which the job refuses that option."""
OF_A_MISSING_FILE = frozenset({Reason.EXIT_CODE, Reason.FILE_NOT_FOUND})
"""Reasons with which a rank that lacks a file fails: many libraries raise an error of their own."""
_OF_STATE = re.compile(
    r"(size|shape) mismatch|mismatch between collectives|preamble|state_dict|(missing|unexpected) key|checkpoint|ckpt"
    r"|UnpicklingError|PytorchStreamReader|safetensor|Ran out of input|truncated|corrupt|magic number|pickle",
    re.IGNORECASE,
)
"""Words of errors with which a rank fails that loaded another file than the others, or half of one."""


def advice_on(result: Result) -> str:
    """Return the sentence on a typed `--`, a missing file or memory, else on files that only some nodes had.

    Empty: no sentence fits.
    """
    error = result.first_error
    if error is None and result.hang is None:
        return ""
    run = launch_of(result)
    if run is not None and run.args[:1] == ("--",) and error is not None and error.cause is Cause.ARGUMENTS:
        return _without_dashes(run)
    if run is not None and error is not None and (line := how_to_move(run, error)):
        return line
    written = ""
    if run is not None and error is not None and error.reason in OF_A_MISSING_FILE:
        written = written_elsewhere(result, error, run)
    if sentence := written or how_to_bring(result) or _how_to_fit(result):
        return sentence
    if run is not None and run.uneven_files and _explained_by_files(result, run):
        return f"The nodes' files differed: {run.uneven_files}."
    if run is not None and run.options is not None and run.options.project and error is not None:
        return not_here(error.detail, run.options) if error.reason is Reason.FILE_NOT_FOUND else ""
    return ""


def alone_sentence(result: Result) -> str:
    """Return the sentence on ranks that each did the whole job. Empty: they joined, or may have divided it."""
    if result.joined is not False or result.status != "succeeded":
        return ""
    run = launch_of(result)
    if run is None or run.names_ranks:
        return ""
    return (
        f"The {result.world_size} ranks never joined each other (torch.distributed), so each seems to have done the "
        "whole job. --nnodes 1 --nproc-per-node 1 runs it once."
    )


def uneven_note(result: Result) -> str:
    """Return the note that the nodes' files differed as a successful run began: its ranks may have begun apart.

    Empty: the files were the same, or the script loads no such file.
    """
    if result.status != "succeeded":
        return ""
    run = launch_of(result)
    if run is None or not run.uneven_files:
        return ""
    return f"When this run began, the nodes' files differed: {run.uneven_files}."


def _explained_by_files(result: Result, run: Run) -> bool:
    """Return whether files that only some nodes had may be why a run failed or hung."""
    error, hang = result.first_error, result.hang
    folder = Path(run.options.project if run.options and run.options.project else ".")
    if error is None:
        inside = {rank.rank for rank in hang.waiting} if hang is not None else set()
        # A rank that is elsewhere than in a collective is the reason, unless it waits for a file.
        return hang is not None and all(
            rank.file is None or rank.rank in inside or reads_at(folder, f"({rank.file}:{rank.line})")
            for rank in hang.culprits
        )
    if error.cause is Cause.ARGUMENTS:
        return False
    if error.waited_for or error.reason is Reason.LOST_PEER:
        return True
    if error.reason is Reason.FILE_NOT_FOUND:
        return any(name in run.uneven_files for name in Path(path_not_found(error.detail)).parts)
    return error.reason is Reason.EXIT_CODE and (
        bool(_OF_STATE.search(error.detail)) or reads_at(folder, error.message)
    )


def _without_dashes(run: Run) -> str:
    """Return the sentence on a `--` after the script, which the script got as an argument."""
    line = train_line(run, run.args[1:])
    return f"The script got the `--` that was typed after it. Leave out the `--`: {line}"


def _how_to_fit(result: Result) -> str:
    """The sentence on a rank of the built-in job that had too little memory; empty of another end."""
    error, train = result.first_error, result.train
    if error is None or error.reason is not Reason.OUT_OF_MEMORY or result.script != "built-in":
        return ""
    typed = frozenset(word.partition("=")[0] for word in args_of(result))
    ways = ["More --gradient-accumulation-steps compute the same batch in smaller parts"]
    if RECOMPUTING not in typed and not (train.model or "").startswith(WITHOUT_BLOCKS):
        ways.append(f"{RECOMPUTING} keeps less of the forward pass of repeated blocks")
    ways.append(_less_a_rank(train.strategy or "", result.world_size, typed))
    text_model = clean(train.model or "", 64)
    fits = f" gpuctl advise -- --model {text_model} says what fits." if text_model.startswith("gpt-") else ""
    return f"{'; '.join(ways)}.{fits}"


def _less_a_rank(strategy: str, world_size: int, typed: Collection[str]) -> str:
    """The clause on how each rank keeps less of the model than with that strategy. `typed`: names of options."""
    name = strategy.partition(" ")[0]
    if name == "deepspeed" and not strategy.endswith("zero3"):
        alone = " on several ranks" if world_size == 1 else ""
        return (
            f'{{"zero_optimization": {{"stage": 3}}}} in --deepspeed-config divides the weights, too{alone}'
        )
    if name in (*SHARDED, "deepspeed"):
        return "with more machines each rank keeps less of the model"
    if name in SPLIT or " x " in strategy:
        return "with more machines, and a larger --pp or --tp, each rank keeps less of the model"
    out = " and ".join(option for option in OF_DDP if option in typed)
    ranks = " on several ranks" if world_size == 1 else ""
    without = f" and without {out}" if out else ""
    fsdp = f"with --strategy fsdp{ranks}{without}"
    return f"{fsdp} each rank keeps a part of the model, and it resumes these checkpoints, too"
