"""A file that a rank did not find on its node, and that is on this computer: how it gets there."""

import os
import re
import shlex
from pathlib import Path

from gpuctl.run_results.failures.log_errors import path_not_found
from gpuctl.text import clean
from inventories.runs.run import RunOptions
from remote.files.tree import Tree, instead_of_sending, read_tree
from remote.shared.constants import CODE, NODE_FOLDER

_OF_NODE = re.compile(rf".*/{re.escape(NODE_FOLDER)}/{CODE}/[^/]+/(?P<rest>.+)")
"""A path in the code on a node, as a script makes it of its own `__file__`."""
_SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib\w*|opt|proc|run|sbin|sys|usr|var)/")


def how_to_send(words: str, options: RunOptions, *, mode: str = "torchrun") -> str:
    """The sentence on the file that a rank's words name, if it is here; else empty. Raises SyncRefused, OSError."""
    name = path_not_found(words)
    assert options.project is not None
    folder = Path(options.project)
    root = Path(options.root or folder)
    if not name or not root.is_dir():
        return ""
    path, of_node = _on_this_computer(name, options)
    written = name.endswith("/") or not path.exists()
    if written and not name.endswith("/"):
        path, name = path.parent, os.path.dirname(name)  # noqa: PTH120
    if not path.exists() or path == root:
        return ""
    if not path.is_relative_to(root):
        if written or _SYSTEM.match(str(path)):
            return ""  # each machine has such paths of its own
        return (
            f"{path} is on this computer, outside {root}, the folder that was sent. Bring it to the nodes, and have "
            f"the script read it there: gpuctl push {shlex.quote(str(path))} data"
        )
    tree = read_tree(root, include=map(Path, options.include), allow_large=True)
    inner = path.relative_to(root)
    if is_sent(inner, tree):
        in_task = mode == "ray" and not name.startswith("/") and not written
        return (
            f"{name} was sent, but Ray's tasks and actors begin in another folder. Give them its absolute path: "
            f"os.path.abspath({name!r}) in the script, outside them"
            if in_task
            else ""
        )
    name = inner.as_posix() if of_node else name
    if why := tree.why_skipped(inner.as_posix()):
        return f"{name} is on this computer and was not sent: {why}"
    if link := _link_out(path, root):
        shown = link.relative_to(root).as_posix()
        return f"{shown} leads out of the folder that was sent. {instead_of_sending(link, root)}"
    if written:
        return (
            f"The folder {name.rstrip('/')} is on this computer and was not sent, because git ignores it. Have the "
            f"script make it: os.makedirs({name.rstrip('/')!r}, exist_ok=True). Or send it with all that it holds: "
            f"--include {shlex.quote(os.path.relpath(path, folder))}"
        )
    # A script often reads all of a folder: the highest one of which nothing is sent.
    unsent = next((above for above in reversed(inner.parents[:-1]) if not is_sent(above, tree)), inner)
    return ignored(name, root / unsent, folder)


def not_here(words: str, options: RunOptions) -> str:
    """Return the sentence on a file of the project that a rank did not find and this computer lacks; else empty."""
    name = path_not_found(words)
    inner = path_in_project(name, options) if re.search(r"[./]", name) and not name.endswith("/") else None
    if (
        options.project is None
        or inner is None
        or (file := Path(options.root or options.project, inner)).exists()
    ):
        return ""
    path = os.path.relpath(file, options.project)
    sentence = (
        f"{clean(path)} is not on this computer either (gpuctl looked in {options.project}). Copy it there, "
        f"then send it: gpuctl push --into-project {shlex.quote(path)}"
    )
    if file.parent.exists():
        return sentence
    made = os.path.relpath(file.parent, options.project)
    return f"{sentence}\nIf the script writes it, make its folder in the script: os.makedirs({made!r}, exist_ok=True)"


def _link_out(path: Path, root: Path) -> Path | None:
    """Return the link on the way to a path that leads out of the root, if any."""
    inside = [above for above in (*reversed(path.parents), path) if above.is_relative_to(root)]
    real = root.resolve()
    links = (above for above in inside if above.is_symlink())
    return next((link for link in links if not link.resolve().is_relative_to(real)), None)


def ignored(name: str, path: Path, folder: Path) -> str:
    """The sentence on what git ignores of a project, at `path`; `folder`: where the command is typed."""
    return (
        f"{name} is on this computer and was not sent, because git ignores it. Send it with this option: --include "
        f"{shlex.quote(os.path.relpath(path, folder))}"
    )


def path_in_project(name: str, options: RunOptions) -> str | None:
    """Return where a path that a script names lies in the folder that was sent. `None`: outside."""
    path, _ = _on_this_computer(name, options)
    root = options.root or options.project or "."
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None


def _on_this_computer(name: str, options: RunOptions) -> tuple[Path, bool]:
    """Return the path here of a file that a script names, and whether it names a path in the code on a node."""
    folder = Path(options.project or ".")
    of_node = _OF_NODE.fullmatch(name)
    path = Path(options.root or folder, of_node["rest"]) if of_node else folder / name
    return Path(os.path.normpath(path)), of_node is not None


def is_sent(path: Path, tree: Tree) -> bool:
    """Return whether a file, or any file in a folder, is sent. `path`: relative to the folder that is sent."""
    name = path.as_posix()
    sent = (*tree.entries, *tree.folders)
    return name in sent or any(entry.startswith(f"{name}/") for entry in sent)
