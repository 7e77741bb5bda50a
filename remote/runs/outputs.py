"""Files of a run in the project's folder on a node: the node's list, and the files that came with it."""

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inventories.codec import dump, load
from inventories.disk import lock
from inventories.disk.files import private_dir, write_atomic
from inventories.disk.store import RunFolder
from inventories.runs.outputs import NodeOutputs, OutsidePath, WrittenFile
from inventories.runs.run import Run, RunNode, RunOptions
from remote.errors import BadAnswer
from remote.shared.checkpoint_sets import sets_in
from remote.shared.trees import matches

SMALL_BYTES = 64 * 1000**2
"""The maximum of a node's files that no pattern names, all together."""
NAMED_BYTES = 100 * 1000**3
"""The maximum of a node's files that patterns name."""
NONE = "none"
"""In place of patterns: nothing is brought."""
MAX_LISTED = 20_000


def wanted_outputs(options: RunOptions | None) -> dict[str, Any]:
    """Return the request to a node for files that the run wrote."""
    bring = options.bring if options else ()
    if NONE in bring:
        return {"patterns": [], "max_bytes": 0}
    return {"patterns": list(bring), "max_bytes": SMALL_BYTES}


def max_output_bytes(options: RunOptions | None) -> int:
    """Return the maximum that a node may send of the run's files."""
    patterns = wanted_outputs(options)
    return int(patterns["max_bytes"]) + (NAMED_BYTES if patterns["patterns"] else 0)


def listing_of(node: str, header: Mapping[str, Any], body: bytes) -> NodeOutputs:
    """A node's list, with nothing brought yet. Raises BadAnswer, KeyError, TypeError, ValueError or OverflowError."""
    try:
        listed = json.loads(body)
    except RecursionError:
        listed = None
    if not isinstance(listed, list) or len(listed) > MAX_LISTED:
        raise BadAnswer(f"{node}: sent a list of its outputs that can't be read.")
    return NodeOutputs(
        node=node,
        folder=_shown(header["folder"]),
        files=int(header["files"]),
        bytes=int(header["bytes"]),
        whole=bool(header["whole"]),
        shared_with=tuple(_shown(name) for name in header["shared_with"]),
        listed=tuple(
            WrittenFile(path=_shown(path), bytes=int(size), changed_ns=int(at), brought=False)
            for path, size, at in listed
        ),
        outside=outside_paths(node, header.get("outside", [])),
    )


def outside_paths(node: str, listed: Any) -> tuple[OutsidePath, ...]:  # noqa: ANN401 - whatever the node sent
    """Return a node's list of the paths that a run wrote outside the project's folder. Raises as `listing_of`."""
    return tuple(
        OutsidePath(node=node, path=_shown(path), bytes=int(size), files=int(files))
        for path, size, files in listed[:MAX_LISTED]
    )


def _shown(name: object) -> str:
    """Return a name as text that any file can hold: bytes that are no text become escapes."""
    if not isinstance(name, str):
        raise BadAnswer(f"{name!r} is no name of a file")
    return name.encode("utf-8", "backslashreplace").decode()


def keep_outputs(folder: RunFolder, listing: NodeOutputs, came: Path) -> None:
    """Add a node's received files to the existing ones, and save its list, which names the received ones.

    A file that came again replaces the one that is here; nothing else goes. Two commands may do so at once. Raises
    InventoryError where the folder can't be locked.
    """
    target = folder.outputs_path / listing.node
    with lock.hold(folder.path / "lock", subject=f"the outputs of run {folder.id}", command="gpuctl"):
        if came.is_dir():
            private_dir(folder.outputs_path)
            _merge(came, target)
        brought = {
            _shown(path.relative_to(target).as_posix()) for path in target.rglob("*") if path.is_file()
        }
        private_dir(folder.written_path)
        listed = tuple(replace(file, brought=file.path in brought) for file in listing.listed)
        write_atomic(folder.written_path / f"{listing.node}.json", dump(replace(listing, listed=listed)))


def gather_parts(folder: RunFolder, nodes: Sequence[RunNode]) -> None:
    """Put the parts of a checkpoint that nodes wrote and brought together, in the folder of the first of them.

    The parts stay in their nodes' folders, too: they are linked. Raises InventoryError for a folder that is locked.
    """
    writers: dict[str, list[str]] = {}
    for node in read_outputs(folder, nodes):
        for file in node.listed:
            if file.brought:
                writers.setdefault(file.path, []).append(node.node)
    with lock.hold(folder.path / "lock", subject=f"the outputs of run {folder.id}", command="gpuctl"):
        for paths in sets_in(writers).values():
            first = min(
                (node for path in paths for node in writers[path]), key=[part.name for part in nodes].index
            )
            for path in paths:
                source, target = (
                    folder.outputs_path / writers[path][0] / path,
                    folder.outputs_path / first / path,
                )
                if source.is_file() and not target.exists():
                    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    try:
                        os.link(source, target)
                    except OSError:
                        shutil.copy2(source, target)


def _merge(came: Path, target: Path) -> None:
    """Move a folder's files to their places in another. A file in a folder's place, or the reverse, is renamed."""
    private_dir(target)
    for new in sorted(came.iterdir()):
        destination = target / new.name
        if destination.exists() and destination.is_dir() != new.is_dir():
            destination.rename(target / f"{new.name}.before-{secrets.token_hex(4)}")
        if new.is_dir() and destination.is_dir():
            _merge(new, destination)
        else:
            new.replace(destination)


def read_outputs(folder: RunFolder, nodes: Iterable[RunNode]) -> list[NodeOutputs]:
    """Return the nodes' lists, by rank; a node without a list is missing."""
    again = "Remove the file: it tells what the run wrote on that node, and nothing else needs it."
    paths = [folder.written_path / f"{node.name}.json" for node in nodes]
    return [load(NodeOutputs, path.read_bytes(), str(path), rebuild=again) for path in paths if path.exists()]


def matched_nothing(folder: RunFolder, run: Run) -> tuple[str, ...]:
    """Return the requested patterns that match no file of the run, if all files are known."""
    options, nodes = run.options, read_outputs(folder, run.nodes)
    known = all(node.whole and node.files == len(node.listed) for node in nodes)
    if options is None or NONE in options.bring or not known or len(nodes) < len(run.nodes):
        return ()
    inner = os.path.relpath(options.project or ".", options.root or options.project or ".")
    paths = {file.path for node in nodes for file in node.listed}
    return tuple(
        pattern for pattern in options.bring if not any(matches(path, pattern, inner) for path in paths)
    )
