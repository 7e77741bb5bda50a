"""A file that a rank did not find on its node, and that is on this computer: how it gets there."""

import os
import re
import shlex
from pathlib import Path

from gpuctl.run_results.log_errors import path_not_found
from gpuctl.text import with_tilde
from inventories.run import RunOptions
from remote.files.tree import Tree, read_tree
from remote.shared.constants import CODE, NODE_FOLDER

_OF_NODE = re.compile(rf".*/{re.escape(NODE_FOLDER)}/{CODE}/[^/]+/(?P<rest>.+)")
"""A path in the code on a node, as a script makes it of its own `__file__`."""


def how_to_send(words: str, options: RunOptions) -> str:
    """The sentence on the file that a rank's words name, if it is here; else empty. Raises SyncRefused, OSError."""
    name = path_not_found(words)
    assert options.project is not None
    folder = Path(options.project)
    root = Path(options.root or folder)
    if not name or not root.is_dir():
        return ""
    of_node = _OF_NODE.fullmatch(name)
    path = Path(os.path.normpath(root / of_node["rest"] if of_node else folder / name))
    if not path.exists():
        return ""
    if not path.is_relative_to(root):
        if Path(name).is_absolute() and not with_tilde(str(path)).startswith("~"):
            return ""  # each machine has such paths of its own
        return (
            f"{path} is on this computer, outside {root}, the folder that was sent. Bring it to the nodes, and have "
            f"the script read it there: gpuctl push {shlex.quote(str(path))} data"
        )
    tree = read_tree(root, include=map(Path, options.include), allow_large=True)
    inner = path.relative_to(root)
    if is_sent(inner, tree):
        return ""
    name = inner.as_posix() if of_node else name
    if why := tree.why_skipped(inner.as_posix()):
        return f"{name} is on this computer and was not sent: {why}"
    whole = root / _largest_unsent(inner, tree)
    if not read_tree(root, include=[whole], allow_large=True).entries.keys() - tree.entries.keys():
        return ""  # an empty folder
    return ignored(name, whole, folder)


def ignored(name: str, path: Path, folder: Path) -> str:
    """The sentence on what git ignores of a project, at `path`; `folder`: where the command is typed."""
    return (
        f"{name} is on this computer and was not sent, because git ignores it. Send it with this option: --include "
        f"{shlex.quote(os.path.relpath(path, folder))}"
    )


def path_in_project(name: str, options: RunOptions) -> str | None:
    """Return where a path that a script names lies in the folder that was sent. None: outside."""
    folder = Path(options.project or ".")
    root = Path(options.root or folder)
    of_node = _OF_NODE.fullmatch(name)
    path = Path(os.path.normpath(root / of_node["rest"] if of_node else folder / name))
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None


def is_sent(path: Path, tree: Tree) -> bool:
    """Whether a file, or something in a folder, is among what is sent; `path`: from the folder that is sent."""
    name = path.as_posix()
    return name in tree.entries or any(entry.startswith(f"{name}/") for entry in tree.entries)


def _largest_unsent(path: Path, tree: Tree) -> Path:
    """The path, or the highest folder above it of which nothing is sent: a script often reads all of that."""
    for above in reversed(path.parents[:-1]):
        if not is_sent(above, tree):
            return above
    return path
