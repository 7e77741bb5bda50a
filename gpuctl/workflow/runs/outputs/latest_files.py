"""The latest version of each file that earlier runs left on the nodes, and the checkpoints that it makes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from remote.files.earlier import EarlierFiles
from remote.shared.checkpoint_sets import sets_in

WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".npz", ".h5")
Digests = Mapping[str, Mapping[str, str]]
"""Node → path → digest of its content, of files that may be copies of each other."""


@dataclass(frozen=True, kw_only=True)
class PartedCheckpoint:
    """A checkpoint of an earlier run, of which ranks on several nodes wrote each a part."""

    folder: str
    files: tuple[str, ...]
    nodes: tuple[str, ...]
    """Nodes that wrote the latest version of one of its files."""
    lacks: tuple[str, ...]
    """Parts that it needs and that no node has of the same run."""


def latest(earlier: Mapping[str, EarlierFiles]) -> dict[str, str]:
    """Return, by path, the node whose file the latest run wrote; of several, the first one."""
    source: dict[str, str] = {}
    for node, left in earlier.items():
        for path in left.files:
            before = source.get(path)
            if before is None or _run(earlier, node, path) > _run(earlier, before, path):
                source[path] = node
    return source


def _run(earlier: Mapping[str, EarlierFiles], node: str, path: str) -> str:
    return earlier[node].runs.get(path, "")


def outdated(
    earlier: Mapping[str, EarlierFiles], source: Mapping[str, str], digests: Digests
) -> dict[str, list[str]]:
    """Return, by node, the paths of which it lacks the latest version."""
    return {
        node: [path for path, origin in source.items() if not _same(earlier, node, origin, path, digests)]
        for node in earlier
    }


def _same(earlier: Mapping[str, EarlierFiles], node: str, other: str, path: str, digests: Digests) -> bool:
    """Return whether two nodes have the same file, by size and time, or by content."""
    if earlier[node].files.get(path) == earlier[other].files.get(path):
        return True
    digest = digests.get(node, {}).get(path)
    return digest is not None and digest == digests.get(other, {}).get(path)


def may_be_copies(earlier: Mapping[str, EarlierFiles], source: Mapping[str, str]) -> list[str]:
    """Return the paths of files that have one size and several times: only their content shows if they differ."""
    paths = []
    for path, origin in source.items():
        size, at = earlier[origin].files[path]
        versions = [left.files[path] for left in earlier.values() if path in left.files]
        if any(version[0] == size and version[1] != at for version in versions):
            paths.append(path)
    return paths


def differing(
    earlier: Mapping[str, EarlierFiles], source: Mapping[str, str], digests: Digests
) -> dict[str, list[str]]:
    """Return the files that several nodes have with other content than the latest → these nodes."""
    behind = outdated(earlier, source, digests)
    holders: dict[str, list[str]] = {}
    for node, paths in behind.items():
        for path in paths:
            if path in earlier[node].files:
                holders.setdefault(path, []).append(node)
    return holders


def parted_checkpoints(
    earlier: Mapping[str, EarlierFiles], source: Mapping[str, str]
) -> list[PartedCheckpoint]:
    """Return the checkpoints in parts that lie on more than one node or lack parts, the latest files of all."""
    behind = {path for paths in outdated(earlier, source, {}).values() for path in paths}
    checkpoints = []
    for folder, files in sets_in(source).items():
        nodes = [node for node in earlier if any(source[path] == node for path in files)]
        # The parts that the latest `.metadata` files name, and that no node has of the run that wrote these.
        lacks: set[str] = set()
        for path in files:
            run = _run(earlier, source[path], path)
            parts = earlier[source[path]].parts.get(path, ())
            lacks |= {part for part in parts if part not in source or _run(earlier, source[part], part) < run}
        if lacks or behind.intersection(files):
            checkpoints.append(
                PartedCheckpoint(
                    folder=folder, files=tuple(files), nodes=tuple(nodes), lacks=tuple(sorted(lacks))
                )
            )
    return checkpoints
