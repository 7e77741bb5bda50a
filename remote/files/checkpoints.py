"""Checkpoints on nodes: what each has of a run, and how they get to the node on which the next run looks for them."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inventories.runs.run import Checkpoints, Run, RunNode
from remote.errors import BadAnswer, NodeFailed, SyncRefused
from remote.files.pull import take_in
from remote.files.receive import FileReceiver
from remote.files.sync import sync
from remote.files.tree import tree_of
from remote.sessions.answers import reading
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.checkpoint_files import describe, describe_script, files_in, lacking, torn_in
from remote.shared.checkpoint_sets import ranks_of
from remote.shared.constants import PARTS, PLACED_CHECKPOINTS
from remote.shared.files import read_json

PLACED_WITHIN_S = 3600.0
"""A node may have to copy them from one of its disks to another."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A machine's share of a run's checkpoints."""

    found: Checkpoints | None = None
    """Checkpoints of the run's first node, if they are here. `None`: no checkpoints."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Files that ranks wrote each for itself, of any checkpoint, with their bytes."""


def on_node(node: Node, runs: Sequence[Run]) -> list[Held]:
    """Return the node's share of each run's checkpoints. One round trip."""
    answer = node.call("checkpoints", {"runs": [_source(run) for run in runs]})
    with reading(node.name, "what it says of checkpoints"):
        checkpoints = [None if document is None else checkpoints_of(document) for document in answer["found"]]
        parts = [{str(name): int(size) for name, size in sizes.items()} for sizes in answer["parts"]]
    if not len(checkpoints) == len(parts) == len(runs):
        raise BadAnswer(
            f"{node.name}: was asked for {len(runs)} runs' checkpoints, and told of {len(checkpoints)}."
        )
    return [Held(found=document, parts=names) for document, names in zip(checkpoints, parts, strict=True)]


def as_one_set(run: Run, held: Mapping[str, Held], absent: Iterable[str] = ()) -> dict[str, Held]:
    """Return the files of each machine as parts of one set: of a script, all that ranks on several machines wrote.

    `held`: machine → its files, rank 0's first. A name that several wrote is the first one's. A machine lacks the
    files of the others, and its bytes are of all. `absent`: names of files that nodes wrote which do not answer.
    """
    if run.built_in:
        return dict(held)
    owner = {name: key for key in reversed(list(held)) for name in held[key].parts}
    sizes = {name: held[key].parts[name] for name, key in owner.items()}
    absent = set(absent).difference(owner)
    parts_of_set = {}
    for key, of_node in held.items():
        foreign_parts = {name for name, writer in owner.items() if writer != key}
        own_parts = {name: size for name, size in of_node.parts.items() if name not in foreign_parts}
        checkpoints = of_node.found
        if checkpoints is not None:
            size = checkpoints.bytes + sum(sizes[name] for name in foreign_parts)
            lacks = tuple(sorted(foreign_parts.union(checkpoints.lacks, absent)))
            checkpoints = replace(checkpoints, bytes=size, lacks=lacks)
        parts_of_set[key] = Held(found=checkpoints, parts=own_parts)
    return parts_of_set


def in_folder(folder: Path, run: Run) -> Checkpoints | None:
    """Return the checkpoints of a run in a folder on this computer, `checkpoints` in the run's."""
    if run.built_in:
        document = describe(folder)
    else:
        files = {name: folder for name, _ in files_in(folder, whole=False)}
        parts = read_json(folder.parent / PARTS).values()
        written = {str(name) for names in parts for name in names}
        document = describe_script(files, written, run.world_size)
        if document is not None:
            document["lacks"] = sorted(written.difference(files).union(document["lacks"]))
            document["torn"] = torn_in(folder)
    return None if document is None else checkpoints_of(document)


def place(node: Node, run: Run, target: RunNode) -> None:
    """Have the node place its files of `run` for a run before its launch: no bytes travel. Raises NodeFailed."""
    request = {"source": _source(run), "run_dir": target.run_dir}
    with node.stream("place", request, bounds=Bounds(total_s=PLACED_WITHIN_S)) as talk:
        last = None
        for header, _ in talk.frames():
            last = header.get("t")
    if last != frames.PLACED:
        raise BadAnswer(f"{node.name}: did not say that it has placed the checkpoints of run {run.run}.")


def discard(node: Node, target: RunNode) -> None:
    """Have the node remove files that were placed for a run without a launch."""
    node.call("discard", {"run_dir": target.run_dir})


def bring(
    node: Node,
    run: Run,
    intake: FileReceiver,
    *,
    newest: bool = False,
    names: Sequence[str] = (),
    window_bytes: int | None = None,
) -> None:
    """Bring a node's checkpoints of `run`, or the files needed to resume from the `newest`. In chunks.

    `names`: only these parts, if the node has them. `window_bytes` as `Node.stream` takes it. Raises NodeFailed if
    a file is missing.
    """
    request = {"source": _source(run), "newest": newest, "names": list(names)}
    refused = take_in(node, "send_checkpoints", request, intake, window_bytes=window_bytes)
    if refused:
        raise NodeFailed(
            f"{node.name}: not all checkpoints of run {run.run} could be brought here, and a part of them is not "
            f"used: {_some(refused)}. Mend or remove these files there."
        )


def bring_together(
    nodes: Iterable[Node],
    run: Run,
    intake: FileReceiver,
    *,
    newest: bool = False,
    window_bytes: int | None = None,
) -> None:
    """Bring the first node's checkpoints of `run`, and their missing parts from the other nodes.

    Incomplete checkpoints do not count any more. Raises NodeFailed if the newest is incomplete.
    """
    first, *other_nodes = nodes
    if not run.built_in:
        held = as_one_set(run, {node.name: on_node(node, [run])[0] for node in (first, *other_nodes)})
        bring(first, run, intake, window_bytes=window_bytes)
        for node in other_nodes:
            if parts := list(held[node.name].parts):
                bring(node, run, intake, names=parts, window_bytes=window_bytes)
        checkpoints = held[first.name].found
        brought = {name for of_node in held.values() for name in of_node.parts}
        if checkpoints is not None and (absent := sorted(set(checkpoints.lacks) - brought)):
            raise NodeFailed(lacks_parts(run, absent))
        return
    bring(first, run, intake, newest=newest, window_bytes=window_bytes)
    for node in other_nodes:
        if names := lacking(intake.root):
            bring(node, run, intake, names=list(names), window_bytes=window_bytes)
    if missed := lacking(intake.root, newest=True):
        raise NodeFailed(lacks_parts(run, list(missed)))
    for name in {missed.partition("/")[0] for missed in lacking(intake.root)}:
        (intake.root / f"{name}.json").unlink()


def lacks_parts(run: Run, names: Sequence[str]) -> str:
    """The sentence for a checkpoint of which no machine in reach has all parts."""
    if run.built_in:
        folder = names[0].partition("/")[0]
        return (
            f"The newest checkpoint of run {run.run}, {folder}, is not whole: no machine that answers has "
            f"{_some(names)}. Bring the node back that wrote them, or remove {folder}.json on "
            f"{first_of(run).name} to resume from an earlier one."
        )
    folder = names[0].rpartition("/")[0] or "checkpoints"
    wrote = [
        f"{rank} ({part.name})"
        for rank in ranks_of(names)
        for part in run.nodes
        if part.first_rank <= rank < part.first_rank + part.nproc
    ]
    ranks = f" of rank {_some(wrote)}" if wrote else ""
    return (
        f"The checkpoint {folder} of run {run.run} is incomplete: parts{ranks} are missing, and no machine that "
        f"answers has {_some(names)}. Bring the node back that wrote them, or remove {folder} in "
        f"{first_of(run).run_dir}/checkpoints on {first_of(run).name} to resume from the other files."
    )


def other_content(run: Run, names: Sequence[str]) -> str:
    """Return the sentence on names under which several nodes wrote different content into the checkpoints' folder."""
    return (
        f"GPUCTL_RUN_DIR/checkpoints: nodes wrote different content under one name ({_some(names)}). A run that "
        f"resumes gets the file of the lowest node rank, {first_of(run).name}. Give each rank's file its own name."
    )


def keep_times(folder: Path, checkpoints: Checkpoints) -> None:
    """Give received files the age that they have on the node: the newest exactly, the rest no younger."""
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    newest = folder / checkpoints.newest
    dated = folder / f"{checkpoints.newest}.json" if newest.is_dir() else newest
    inside = [at for path, at in files.items() if newest in path.parents]  # of a script's parts
    younger_ns = files.get(dated, max(inside, default=checkpoints.written_ns)) - checkpoints.written_ns
    for path, written_ns in files.items():
        os.utime(path, ns=(written_ns - younger_ns, written_ns - younger_ns))


def send(node: Node, folder: Path, target: RunNode, *, say: Callable[[str], None]) -> None:
    """Send a folder's files, in chunks, to where a run that is to be launched on the node finds them.

    Raises SyncRefused for a file that is never sent, and what `sync` does.
    """
    placed, tree = PLACED_CHECKPOINTS.format(target.run_dir), tree_of(folder, "**/*")
    if tree.skipped:
        raise SyncRefused(
            f"Not all checkpoints can be sent to {node.name}, and a part is not: {_some(list(tree.skipped))}. "
            "Such names are kept back, as they stand for credentials; have the script choose others."
        )
    sync(node, tree, placed, follow_deletions=False, say=say)


def _some(names: Sequence[str], limit: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _source(run: Run) -> tuple[str, str, bool, int]:
    """Return the arguments for a question about a run's checkpoints."""
    return run.run, first_of(run).name, run.built_in, run.world_size


def first_of(run: Run) -> RunNode:
    """The node on which a run's checkpoints are looked for first."""
    return min(run.nodes, key=lambda part: part.rank)


def checkpoints_of(document: Mapping[str, Any]) -> Checkpoints:
    """Read a node's description of a set. Raises KeyError, TypeError or ValueError for anything else."""
    return Checkpoints(
        files=int(document["files"]),
        bytes=int(document["bytes"]),
        newest=str(document["newest"]),
        written_ns=int(document["written_ns"]),
        lacks=tuple(map(str, document["lacks"])),
        torn=tuple(map(str, document.get("torn", ()))),
    )
