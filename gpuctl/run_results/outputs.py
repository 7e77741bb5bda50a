"""Outputs of a run: files that it wrote into the project's folder on the nodes, and their copies here. Pure."""

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar

from gpuctl.text import clean, with_tilde
from inventories.disk.store import RunFolder
from inventories.runs.outputs import NodeOutputs, OutputFile, OutputTotal, OutsidePath
from inventories.runs.result import Result
from inventories.runs.run import Run
from remote.shared.checkpoint_sets import sets_in
from remote.shared.constants import HOME_OUTPUTS, NODE_FOLDER, RUN_DIR_VARIABLE, RUNS

AnyPath = TypeVar("AnyPath", bound=PurePath)
MAX_LISTED = 1000
"""Outputs of a node that a result lists, and files of each kind."""

KINDS: tuple[tuple[str, str], ...] = (
    ("Ray", r"((?:.*/)?ray_results/[^/]+)/.+"),
    ("W&B", r"((?:.*/)?wandb)/.+"),
    ("MLflow", r"((?:.*/)?(?:mlruns|mlflow\.db))(?:/.+)?"),
    ("Lightning", r"((?:.*/)?lightning_logs(?:/version_[^/]+)?)/.+"),
    ("Hydra", r"((?:.*/)?(?:outputs|multirun)/\d{4}-\d\d-\d\d(?:/\d\d-\d\d-\d\d)?)/.+"),
    ("TensorBoard", r"((?:.*/)?)[^/]*events\.out\.tfevents\.[^/]+"),
)
"""What wrote a file → its path, of which the group is the folder that belongs together."""
_PATTERNS = tuple((kind, re.compile(pattern, re.DOTALL)) for kind, pattern in KINDS)


def kind_of(path: str) -> tuple[str | None, str]:
    """Return the tool that wrote a file, and the folder that its files form. Unknown: `None` and the path itself."""
    for kind, pattern in _PATTERNS:
        if match := pattern.fullmatch(path):
            return kind, match[1].rstrip("/") or path
    return None, path


def outputs_of(nodes: Iterable[NodeOutputs]) -> tuple[tuple[OutputFile, ...], tuple[OutputTotal, ...]]:
    """Return the files that nodes listed, and their total numbers. Files of a shared home are counted once."""
    files: list[OutputFile] = []
    totals: list[OutputTotal] = []
    by_node: dict[str, set[tuple[str, int, int]]] = {}
    for node in nodes:
        twice = set().union(*(by_node.get(name, set()) for name in node.shared_with))
        unshared = [file for file in node.listed if (file.path, file.bytes, file.changed_ns) not in twice]
        by_node[node.node] = {(file.path, file.bytes, file.changed_ns) for file in node.listed}
        count = node.files - (len(node.listed) - len(unshared))
        if not count and node.whole:
            continue
        size = node.bytes - sum(file.bytes for file in node.listed) + sum(file.bytes for file in unshared)
        totals.append(
            OutputTotal(node=node.node, folder=node.folder, files=count, bytes=size, whole=node.whole)
        )
        # Files on the node alone come first: a list that is cut short must not lack them.
        listed = sorted(unshared, key=lambda file: (file.brought, file.path))[:MAX_LISTED]
        files += [
            OutputFile(
                node=node.node,
                path=file.path,
                bytes=file.bytes,
                kind=kind_of(file.path)[0],
                brought=file.brought,
            )
            for file in sorted(listed, key=lambda file: file.path)
        ]
    return tuple(files), tuple(totals)


def with_local_paths_once(run: Run, home: Path, paths: Iterable[OutsidePath]) -> tuple[OutsidePath, ...]:
    """Return the paths; of local hosts, whose homes are in gpuctl's, an absolute path once, as this computer's."""
    if not Path(run.nodes[0].run_dir).is_relative_to(home):
        return tuple(paths)
    listed: dict[tuple[str, str], OutsidePath] = {}
    for path in paths:
        absolute = path.path.startswith("/")
        key = ("" if absolute else path.node, path.path)
        listed.setdefault(key, replace(path, on_this_computer=absolute))
    return tuple(listed.values())


@dataclass(frozen=True, kw_only=True)
class OutputGroup:
    """Outputs of a node that belong together, as one line of a table."""

    path: str
    """A file, or the folder that they are in."""
    kind: str | None
    files: int
    bytes: int
    brought: int
    """How many of them are here."""


IN_PARTS = "checkpoint in parts"


def checkpoints_in_parts(files: Sequence[OutputFile]) -> dict[str, list[OutputFile]]:
    """Return, by folder, the files of each checkpoint of which several nodes wrote a part."""
    paths = {file.path for file in files}
    sets = {
        folder: [file for file in files if file.path in members]
        for folder, members in ((folder, set(members)) for folder, members in sets_in(paths).items())
        if folder != "."
    }
    return {folder: members for folder, members in sets.items() if len({file.node for file in members}) > 1}


def groups_of(files: Sequence[OutputFile], in_parts: Collection[str] = ()) -> list[OutputGroup]:
    """Return a node's outputs, grouped by tool and folder.

    Groups with files that are not here come first, then the largest. `in_parts`: folders of checkpoints with
    parts on other nodes, too.
    """
    together: dict[tuple[str | None, str], list[OutputFile]] = {}
    for file in files:
        folder = next((folder for folder in in_parts if file.path.startswith(f"{folder}/")), None)
        together.setdefault((IN_PARTS, folder) if folder else kind_of(file.path), []).append(file)
    groups = [
        OutputGroup(
            path=members[0].path if len(members) == 1 and kind != IN_PARTS else folder,
            kind=kind,
            files=len(members),
            bytes=sum(file.bytes for file in members),
            brought=sum(file.brought for file in members),
        )
        for (kind, folder), members in together.items()
    ]
    return sorted(groups, key=lambda group: (group.brought == group.files, -group.bytes, group.path))


def path_on_node(run: str, total: OutputTotal, path: str) -> str:
    """Return the place of an output on its node for `gpuctl pull`. An empty `path` is the project's folder."""
    first, _, inner = path.partition("/")
    if first == HOME_OUTPUTS and inner:
        return inner
    if first == RUN_DIR_VARIABLE and inner:
        return f"{NODE_FOLDER}/{RUNS}/{run}/{total.node}/{inner}"
    return f"{total.folder}/{path}"


def pull_command(cluster: str, node: str | None, path: str, destination: Path) -> str:
    """Return the command that copies a file of a node, or a folder's content, into a folder on this computer.

    Without a node, of every node, each into a folder of its own. If a name can't be typed, the nearest folder above
    it is named.
    """
    source, target = _nearest_typed(PurePosixPath(path)), str(_nearest_typed(destination))
    named = "" if cluster == "default" else f" --cluster {cluster}"
    only = "" if node is None else f" --rank {shlex.quote(node)}"
    short = with_tilde(target) if destination.is_absolute() else target
    start, rest = ("~/", short[2:]) if short.startswith("~/") and short != target else ("", short)
    return f"gpuctl pull{named}{only} {shlex.quote(str(source))} {start}{shlex.quote(rest)}"


def pulled_folder(home: Path, *parts: str) -> Path:
    """Return a folder for files of a run or backup: no project is in it, so that no later run sends them.

    `home`: gpuctl's. `parts`: the run, and its node if only that is copied: no node's files replace another's.
    """
    return home.joinpath("pulled", *parts)


def pull_outputs_command(result: Result, node: str | None, source: str, path: str) -> str:
    """Return the command that copies an output. `path`: its folder's, relative to the project's."""
    parts = [result.run, *([] if node is None else [node]), path.lstrip("/")]
    return pull_command(result.cluster, node, source, pulled_folder(Path(result.dir).parents[1], *parts))


def _nearest_typed(path: AnyPath) -> AnyPath:
    """Return the path, or the nearest folder above it whose name can be typed."""
    text = str(path)
    can_be_typed = clean(text) == text and text.isprintable() and "\\" not in text
    return path if can_be_typed or path.parent == path else _nearest_typed(path.parent)


def in_folder(result: Result, node: str) -> Path:
    """Return the folder of a node's outputs that were copied here."""
    return RunFolder(Path(result.dir)).outputs_path / node
