"""What to do about a run's failure, beside what its sentence says: files that a node lacks."""

import os
import re
import shlex
from pathlib import Path

from gpuctl.run_results.log_errors import path_not_found
from gpuctl.text import with_tilde
from inventories.disk.store import RunFolder
from inventories.end_reasons import Reason
from inventories.errors import InventoryError
from inventories.run import Result, RunOptions
from remote.errors import SyncRefused
from remote.files.tree import Tree, read_tree
from remote.shared.constants import CODE, NODE_FOLDER

_OF_NODE = re.compile(rf".*/{re.escape(NODE_FOLDER)}/{CODE}/[^/]+/(?P<rest>.+)")
"""A path in the code on a node, as a script makes it of its own `__file__`."""


OF_UNEVEN_FILES = frozenset({Reason.EXIT_CODE, Reason.FILE_NOT_FOUND, Reason.LOST_PEER, Reason.NCCL_ERROR})
"""What ranks also fail with of which only some found a file, beside that they wait for each other."""


def advice_on(result: Result) -> str:
    """The sentence on a file that a rank looked for in vain and that is here, else on files that only some nodes had.

    Empty where there is none.
    """
    error = result.first_error
    if error is None and result.hang is None:
        return ""
    try:
        run = RunFolder(Path(result.dir)).load_run()
        if error is not None and error.reason is Reason.FILE_NOT_FOUND and run.options is not None:
            sentence = _how_to_send(path_not_found(error.detail), run.options)
            if sentence:
                return sentence
    except (InventoryError, SyncRefused, OSError):  # the name may be one that no file can have
        return ""
    if not run.uneven_files or not (error is None or error.waited_for or error.reason in OF_UNEVEN_FILES):
        return ""
    if error is not None and error.reason is Reason.FILE_NOT_FOUND:
        name = Path(path_not_found(error.detail)).name
        if not name or name not in run.uneven_files:
            return ""  # it is missing for another reason
    return f"The nodes' files differed: {run.uneven_files}."


def _how_to_send(name: str, options: RunOptions) -> str:
    if options.project is None:
        return ""
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
    if _is_sent(inner, tree):
        return ""
    name = inner.as_posix() if of_node else name
    if why := tree.why_skipped(inner.as_posix()):
        return f"{name} is on this computer and was not sent: {why}"
    whole = root / _largest_unsent(inner, tree)
    if not read_tree(root, include=[whole], allow_large=True).entries.keys() - tree.entries.keys():
        return ""  # an empty folder
    return (
        f"{name} is on this computer and was not sent, because git ignores it. Send it with this option: --include "
        f"{shlex.quote(os.path.relpath(whole, folder))}"
    )


def _is_sent(path: Path, tree: Tree) -> bool:
    name = path.as_posix()
    return name in tree.entries or any(entry.startswith(f"{name}/") for entry in tree.entries)


def _largest_unsent(path: Path, tree: Tree) -> Path:
    """The path, or the highest folder above it of which nothing is sent: a script often reads all of that."""
    for above in reversed(path.parents[:-1]):
        if not _is_sent(above, tree):
            return above
    return path
