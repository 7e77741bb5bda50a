"""Checkpoints on nodes: what each has of a run, and how they get to the node on which the next run looks for them."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventories.run import Checkpoints, Run, RunNode
from remote.errors import BadAnswer, NodeFailed, SyncRefused
from remote.files.pull import take_in
from remote.files.receive import FileReceiver
from remote.files.sync import sync
from remote.files.tree import tree_of
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.checkpoint_files import describe, lacking
from remote.shared.constants import PLACED_CHECKPOINTS

PLACED_WITHIN_S = 3600.0
"""A node may have to copy them from one of its disks to another."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a machine has of a run's checkpoints."""

    found: Checkpoints | None = None
    """What the run's first node had left, where that is here. None: nothing."""
    parts: frozenset[str] = frozenset()
    """Files that ranks wrote each for itself, of any checkpoint."""


def on_node(node: Node, runs: Sequence[Run]) -> list[Held]:
    """What the node has of each run. One round trip."""
    answer = node.call("checkpoints", {"runs": [_source(run) for run in runs]})
    try:
        found = [None if one is None else told(one) for one in answer["found"]]
        parts = [frozenset(map(str, names)) for names in answer["parts"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"{node.name}: what it says of checkpoints can't be read: {error!r}.") from error
    if not len(found) == len(parts) == len(runs):
        raise BadAnswer(
            f"{node.name}: was asked for {len(runs)} runs' checkpoints, and told of {len(found)}."
        )
    return [Held(found=one, parts=names) for one, names in zip(found, parts, strict=True)]


def in_folder(folder: Path, run: Run) -> Checkpoints | None:
    """What a folder on this computer has of a run."""
    found = describe(folder, run.built_in)
    return None if found is None else told(found)


def place(node: Node, run: Run, target: RunNode) -> None:
    """Have the node place what it has of `run` for one that is to be launched: nothing travels. Raises NodeFailed."""
    request = {"source": _source(run), "run_dir": target.run_dir}
    with node.stream("place", request, bounds=Bounds(total_s=PLACED_WITHIN_S)) as talk:
        last = None
        for header, _ in talk.frames():
            last = header.get("t")
    if last != frames.PLACED:
        raise BadAnswer(f"{node.name}: did not say that it has placed the checkpoints of run {run.run}.")


def discard(node: Node, target: RunNode) -> None:
    """Have the node take back what was placed for a run that is not launched after all."""
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
    """Bring what a node has of `run`, or what is needed to resume from the `newest`. In chunks.

    `names`: of parts of which it brings those that the node has, and nothing else. `window_bytes` as `Node.stream`
    takes it. Raises NodeFailed where it is not all of it.
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
    """Bring what the first of the nodes has of `run`, and from the others what it lacks of that.

    What is not whole then does not count any more. Raises NodeFailed where that is so of the newest.
    """
    first, *others = nodes
    bring(first, run, intake, newest=newest, window_bytes=window_bytes)
    for node in others:
        if names := lacking(intake.root):
            bring(node, run, intake, names=list(names), window_bytes=window_bytes)
    if missed := lacking(intake.root, newest=True):
        raise NodeFailed(lacks_parts(run, list(missed)))
    for name in {missed.partition("/")[0] for missed in lacking(intake.root)}:
        (intake.root / f"{name}.json").unlink()


def lacks_parts(run: Run, names: Sequence[str]) -> str:
    """The sentence for a checkpoint of which no machine in reach has all parts."""
    folder = names[0].partition("/")[0]
    return (
        f"The newest checkpoint of run {run.run}, {folder}, is not whole: no machine that answers has "
        f"{_some(names)}. Bring the node back that wrote them, or remove {folder}.json on {first_of(run).name} to "
        "resume from an earlier one."
    )


def keep_times(folder: Path, found: Checkpoints) -> None:
    """Make what was brought into a folder as old as it was there: the newest of it exactly, the rest no younger."""
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    dated = folder / (f"{found.newest}.json" if (folder / found.newest).is_dir() else found.newest)
    younger_ns = files.get(dated, found.written_ns) - found.written_ns
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


def _some(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _source(run: Run) -> tuple[str, str, bool]:
    """How a node is asked for a run's checkpoints."""
    return run.run, first_of(run).name, run.built_in


def first_of(run: Run) -> RunNode:
    """The node on which a run's checkpoints are looked for first."""
    return min(run.nodes, key=lambda part: part.rank)


def told(found: Mapping[str, Any]) -> Checkpoints:
    """What a node tells of a set. Raises KeyError, TypeError or ValueError for anything else."""
    return Checkpoints(
        files=int(found["files"]),
        bytes=int(found["bytes"]),
        newest=str(found["newest"]),
        written_ns=int(found["written_ns"]),
        lacks=tuple(map(str, found["lacks"])),
    )
