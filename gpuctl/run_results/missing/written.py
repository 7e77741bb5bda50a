"""A file that a rank looked for on its node, and that a rank of this run wrote on another node."""

import os
import re
import shlex
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path, PurePosixPath

from gpuctl.run_results.failures.log_errors import path_not_found
from gpuctl.run_results.missing.files import path_in_project
from gpuctl.scripts.sources import names_in
from gpuctl.text import clean
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError
from inventories.runs.end_reasons import Reason
from inventories.runs.result import FirstError, Result
from inventories.runs.run import Run
from remote.runs.run_files import tail
from remote.shared.constants import NODE_FOLDER, RUNS
from remote.shared.secret_arguments import without_secrets

_IN_RUN = re.compile(rf".*/{re.escape(NODE_FOLDER)}/{RUNS}/[^/]+/[^/]+/(?P<rest>.+)")
"""A path in the run's folder on a node, as a script makes it of GPUCTL_RUN_DIR."""
_MISSING = re.compile(
    r"not (?:be )?(?:found|exist)|no such|doesn't exist|(?:can't|cannot|couldn't|could not|unable to) "
    r"(?:find|load|open|read)|is not a|isn't a|\bmissing|\bno .*checkpoint",
    re.IGNORECASE,
)
"""Words of libraries on a file that does not exist, where they do not quote the system's error."""
OF_A_MISSING_FILE = frozenset({Reason.EXIT_CODE, Reason.FILE_NOT_FOUND})
"""Reasons with which a rank that lacks a file fails: many libraries raise an error of their own."""
MAX_EARLIER_RUNS = 20
"""Earlier runs whose records are searched for the run that wrote a file."""
WAYS = (
    "Each node has its own disk. Three ways: every rank writes the file (or LOCAL_RANK 0 of each node); or rank 0 "
    "loads it and sends it to the others with torch.distributed.broadcast_object_list; or the script writes it to a "
    "folder that all nodes share."
)


def written_elsewhere(result: Result, error: FirstError, run: Run) -> str:
    """Return the sentences on who wrote the file that a rank did not find. Empty: no rank is known to have."""
    if error.reason not in OF_A_MISSING_FILE or not (name := _looked_for(result, error, run)):
        return ""
    if in_run := _IN_RUN.fullmatch(name):
        return _of_run_folder(result, error, run, in_run["rest"])
    if run.options is None or (path := path_in_project(name, run.options)) is None:
        return ""
    inside = f"{path}/"
    writers = {file.node for file in result.outputs if file.path == path or file.path.startswith(inside)}
    if error.node in writers:
        return (
            f"This run wrote {clean(path)} on {error.node}, too, but after the rank had looked for it. Let the ranks "
            "wait until the file is written: torch.distributed.barrier()."
        )
    if (earlier := _earlier_run(result, error, run, path)) is not None:
        return _of_earlier_run(error, run, path, *earlier)
    if writers:
        return f"{_writers(run, writers)} wrote {clean(path)} in this run, and {error.node} has no such file. {WAYS}"
    folded = [file for file in result.outputs if file.path.casefold() == path.casefold()]
    if folded:
        return f"This run wrote {clean(folded[0].path)}: upper and lower case count on the nodes."
    return ""


def _earlier_run(result: Result, error: FirstError, run: Run, path: str) -> tuple[str, list[str]] | None:
    """Return the latest run that had written a path before this run began, and the nodes that kept it.

    `None`: nothing that the script may load differed between the nodes, or no such run is known.
    """
    if not run.uneven_files:
        return None
    folders = sorted(folder for folder in Path(result.dir).parent.iterdir() if folder.name < run.run)
    for folder in folders[: -MAX_EARLIER_RUNS - 1 : -1]:
        with suppress(InventoryError, OSError):
            before, earlier = RunFolder(folder).load_run(), RunFolder(folder).load_result()
            if earlier is None or before.cluster != run.cluster or _root(before) != _root(run):
                continue
            inside = f"{path}/"
            nodes = [
                file.node for file in earlier.outputs if file.path == path or file.path.startswith(inside)
            ]
            if nodes:
                return (before.run, list(dict.fromkeys(nodes))) if error.node not in nodes else None
    return None


def _root(run: Run) -> str | None:
    return (run.options.root or run.options.project) if run.options else None


def _of_earlier_run(error: FirstError, run: Run, path: str, earlier: str, nodes: Sequence[str]) -> str:
    """Return the sentences on a file that an earlier run left on some nodes, and the line that shares it.

    A script whose arguments do not name the file may look for it after rank 0 saved it in the same run.
    """
    rank = "a rank" if error.rank is None else f"rank {error.rank}"
    shared = train_line(run, run.args, "--share-outputs")
    sentences = (
        f"{clean(path)} was on {', '.join(nodes)} alone when this run began (run {earlier} wrote it), so {rank} on "
        f"{error.node} did not find it. Copy it to all nodes: {shared}"
    )
    if {PurePosixPath(path).name, PurePosixPath(path).parent.name} & names_in((), run.args):
        return sentences
    return f"{sentences}\nIf the ranks load it after a rank saved it in the same run: {WAYS}"


def train_line(run: Run, args: Sequence[str], *options: str) -> str:
    """Return the line that starts a run's script again with these arguments and options of gpuctl."""
    cluster = () if run.cluster == "default" else ("--cluster", run.cluster)
    words = [*cluster, *options, *run.script_words, *without_secrets(args)]
    return clean(shlex.join(["gpuctl", "train", *words]), 10_000)


def _of_run_folder(result: Result, error: FirstError, run: Run, path: str) -> str:
    """Return the sentences on a file in the run's folder, which each node has for itself."""
    if len(run.nodes) < 2:
        return ""
    writer = f"{_writers(run, {run.nodes[0].name})} wrote {clean(path)} in this run. "
    known = any(file.path == path and file.kind == "checkpoint" for file in result.files)
    first = writer if known and error.node != run.nodes[0].name else ""
    lacks = f"that of {error.node} has no {clean(path)}"
    return f"{first}GPUCTL_RUN_DIR is another folder on each node, and {lacks}. {WAYS}"


def _looked_for(result: Result, error: FirstError, run: Run) -> str:
    """Return the path that a rank did not find: of its error, of its log's end, or one that its error mentions."""
    if name := path_not_found(error.detail):
        return name
    if error.rank is not None:
        lines = tail(RunFolder(Path(result.dir)), error.rank).splitlines()
        if name := next(filter(None, map(path_not_found, reversed(lines))), ""):
            return name
    if not _MISSING.search(error.detail):
        return ""
    folder = path_in_project(".", run.options) if run.options else None
    files = {os.path.relpath(file.path, folder) for file in result.outputs if file.node != error.node}
    names = files | {str(above) for name in files for above in PurePosixPath(name).parents if above.name}
    named = [name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", error.detail)]
    return max(named, key=len, default="")


def _writers(run: Run, nodes: AbstractSet[str]) -> str:
    """Return `Rank 0 on gpu-0`, or `A rank of 0 to 7 on gpu-0`."""
    ranks = []
    for node in (node for node in run.nodes if node.name in nodes):
        last = node.first_rank + node.nproc - 1
        rank = f"rank {last}" if node.nproc == 1 else f"a rank of {node.first_rank} to {last}"
        ranks.append(f"{rank} on {node.name}")
    sentence = " and ".join(ranks)
    return sentence[:1].upper() + sentence[1:]
