"""Advice on a run's failure, in addition to its sentence."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from gpuctl.run_results.failures.log_errors import path_not_found
from gpuctl.run_results.missing.files import how_to_send, not_here
from gpuctl.run_results.missing.modules import how_to_install, how_to_run_in_package
from gpuctl.run_results.missing.settings import how_to_know_commit, how_to_set
from gpuctl.run_results.missing.written import train_line, written_elsewhere
from gpuctl.scripts.misplaced import how_to_move
from gpuctl.scripts.sources import reads_at
from gpuctl.text import clean
from inventories.disk.store import Store
from inventories.errors import InventoryError
from inventories.runs.end_reasons import Cause, Reason
from inventories.runs.result import FirstError, Result
from inventories.runs.run import Run
from remote.errors import RemoteError

SHARDED = ("fsdp", "zero3")
"""Strategies that divide all that a rank keeps among all ranks."""
SPLIT = ("tp", "pp")
"""Strategies that divide layers, or the network into stages."""
OF_DDP = ("--compile", "--compression", "--bucket-mb")
"""Options that the job refuses with another strategy than ddp."""
RECOMPUTING = "--activation-checkpointing"
WITHOUT_BLOCKS = ("cnn", "mlp", "alexnet", "inception_v3", "vgg")
"""Beginnings of the names of networks that repeat no block, for which the job refuses that option."""
_OF_STATE = re.compile(
    r"(size|shape) mismatch|mismatch between collectives|preamble|state_dict|(missing|unexpected) key|checkpoint|ckpt"
    r"|UnpicklingError|PytorchStreamReader|safetensor|Ran out of input|truncated|corrupt|magic number|pickle",
    re.IGNORECASE,
)
"""Words of errors with which a rank fails that loaded another file than the others, or half of one."""


def advice_on(result: Result, run: Run | None) -> str:
    """Return the sentence on a typed `--`, a missing file or memory, else on files that only some nodes had.

    `run`: the record of the launch, if it can be read. Empty: no sentence fits.
    """
    error = result.first_error
    if error is None:
        return "" if result.hang is None or run is None else _uneven_files(result, run)
    if run is None:
        return _how_to_set(result, error) or _how_to_fit(result, ())
    if run.args[:1] == ("--",) and error.cause is Cause.ARGUMENTS:
        line = train_line(run, run.args[1:])
        return f"The script got the `--` that was typed after it. Leave out the `--`: {line}"
    return (
        how_to_move(run, error)
        or written_elsewhere(result, error, run)
        or _how_to_set(result, error)
        or _how_to_bring(result, error, run)
        or _how_to_fit(result, run.args)
        or _uneven_files(result, run)
        or (
            not_here(error.detail, run.options)
            if run.options and error.reason is Reason.FILE_NOT_FOUND
            else ""
        )
    )


def notes_on(result: Result, run: Run | None) -> list[str]:
    """Return the notes on a run that succeeded, and may have done something else than was meant."""
    if result.status != "succeeded" or run is None:
        return []
    notes = []
    if result.joined is False and not run.names_ranks:
        notes.append(
            f"The {result.world_size} ranks never joined each other (torch.distributed), so each seems to have done "
            "the whole job. --nnodes 1 --nproc-per-node 1 runs it once."
        )
    if run.uneven_files:
        notes.append(f"When this run began, the nodes' files differed: {run.uneven_files}.")
    return notes


def _how_to_set(result: Result, error: FirstError) -> str:
    """Return the sentence on a setting that the first failed rank lacked. Empty: it failed for another reason."""
    return (
        how_to_know_commit(error, result.commit)
        or how_to_run_in_package(error, result.script)
        or how_to_set(error)
    )


def _how_to_bring(result: Result, error: FirstError, run: Run) -> str:
    """Return the sentence on a file or module that the first failed rank did not find. Empty: nothing is certain."""
    if run.options is None or run.options.project is None:
        return ""
    try:
        if error.reason is Reason.FILE_NOT_FOUND:
            return how_to_send(error.detail, run.options, mode=run.mode)
        if error.reason is Reason.MODULE_NOT_FOUND:
            own_python, local = _own_python(result)
            return how_to_install(error.detail, run, own_python=own_python, local=local)
    except (InventoryError, RemoteError, OSError):  # the name may be one that no file can have
        pass
    return ""


def _own_python(result: Result) -> tuple[str, bool]:
    """Return the machines' own Python interpreter, and whether they are hosts on this computer.

    Empty: the machines have no such interpreter, or are gone.
    """
    cluster = Store(Path(result.dir).parents[1]).cluster(result.cluster)
    if not cluster.exists():
        return "", False
    inventory = cluster.load()
    python = next((machine.python for machine in inventory.machines if machine.python), "")
    return python, inventory.provider == "local"


def _uneven_files(result: Result, run: Run) -> str:
    """Return the sentence on files that only some nodes had, if these may be why a run failed or hung."""
    explained = run.uneven_files and _explained_by_files(result, run)
    return f"The nodes' files differed: {run.uneven_files}." if explained else ""


def _explained_by_files(result: Result, run: Run) -> bool:
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


def _how_to_fit(result: Result, args: Sequence[str]) -> str:
    """The sentence on a rank of the built-in job that had too little memory; empty of another end."""
    error, train = result.first_error, result.train
    if error is None or error.reason is not Reason.OUT_OF_MEMORY or result.script != "built-in":
        return ""
    typed = frozenset(word.partition("=")[0] for word in args)
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
