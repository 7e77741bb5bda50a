"""Removal of gpuctl's leftovers on a node: named items, examined again, and nothing else.

An item first gets a hidden name, so that nobody takes a half for the whole; no link is followed.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from remote.node import run_state
from remote.node.home_folder import FOLDERS, NODE_HOME
from remote.node.storage import leftovers, sync_lock
from remote.node.storage.pushed import MANIFEST, RECORD
from remote.node.storage.sending import Heartbeat
from remote.shared import constants, frames, trees
from remote.shared.files import digest_of

LOCK_DEADLINE_S = 20.0
LOCK_POLL_S = 0.1


class Skipped(Exception):
    """Something is not removed, and why."""


def command_clean(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `clean`: remove `items` ([kind, name]).

    The answer is `cleaned` with the bytes `freed`, the `removed` items, and the `kept` ones ([kind, name, why]).
    `digests`: name of a run → path in its folder → SHA-256 of its copy, of several any will do. A run
    of which a file is another is kept.

    Says `beat` now and then. Raises OSError, before anything is removed, if a run is active.
    """
    heartbeat, freed = Heartbeat(output), 0
    removed: List[List[str]] = []
    skipped: List[List[str]] = []
    doomed: List[Tuple[str, str, Path]] = []
    with open(str(NODE_HOME / "launch.lock"), "wb") as lock:
        _take(lock, heartbeat)
        busy_runs = run_state.active_runs()
        if busy_runs:
            raise OSError("the run {} is going on here, and nothing was removed".format(busy_runs[0]))
        in_use = leftovers.names_in_use()
        for kind, name in request["items"]:
            try:
                folder = FOLDERS.get("code" if kind == "written" else kind)
                if (folder, name) in in_use:
                    raise Skipped("a process uses it")
                if kind in ("code", "written"):
                    bytes_freed, problem = _remove_files(name, sent=kind == "code", heartbeat=heartbeat)
                    freed += bytes_freed
                    if problem is None:
                        removed.append([kind, name])
                    else:
                        skipped.append([kind, name, problem])
                else:
                    if kind == "run":
                        _compare(name, request["digests"].get(name, {}), heartbeat)
                    doomed.append((kind, name, _set_aside(kind, name)))
            except (Skipped, OSError) as error:
                skipped.append([kind, name, trees.why(error)])
    for kind, name, path in doomed:
        bytes_freed, problem = trees.remove_tree(path, heartbeat)
        freed += bytes_freed
        if problem is None:
            removed.append([kind, name])
        else:
            skipped.append([kind, name, problem])
    frames.write(output, {"t": frames.CLEANED, "freed": freed, "removed": removed, "kept": skipped})


def _take(lock: BinaryIO, heartbeat: Heartbeat) -> None:
    """Hold the lock under which runs are launched. Raises OSError where another holds it for long."""
    limit = time.monotonic() + LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if time.monotonic() > limit:
                raise OSError("a run is being started here, and nothing was removed") from error
        heartbeat()
        time.sleep(LOCK_POLL_S)


def _compare(name: str, digests: Dict[str, List[str]], heartbeat: Heartbeat) -> None:
    """Raise Skipped if a file of a run differs from its copy, though it may be as large."""
    for inner, known in digests.items():
        if digest_of(_path_of("run", name) / inner, heartbeat) not in known:
            raise Skipped("{} is not what was brought of it; --all removes it".format(inner))


def _set_aside(kind: str, name: str) -> Path:
    """Give a folder of ours a hidden name, and return that. Raises Skipped, OSError."""
    path = _path_of(kind, name)
    if kind == "environment" and leftovers.is_being_built(path):
        raise Skipped("it is being built")
    if kind == "wheels" and any(
        leftovers.is_being_built(NODE_HOME / constants.ENVIRONMENTS / folder)
        for folder in leftovers.folders_in(NODE_HOME / constants.ENVIRONMENTS)
    ):
        raise Skipped("an environment is being built from them")
    if kind == "run" and not all(leftovers.is_over(part) for part in leftovers.parts_of(path)):
        raise Skipped("it is not known to be over")
    if kind == "program" and path == leftovers.own_folder():
        raise Skipped("it is in use")
    if kind == "removed":
        return path
    aside = NODE_HOME / (leftovers.REMOVED + os.urandom(8).hex())
    path.rename(aside)
    return aside


def _path_of(kind: str, name: str) -> Path:
    """Return the path of an item: a folder of its own, without a link on the way. Raises Skipped."""
    if kind == "wheels":
        path = NODE_HOME / constants.WHEELS
    elif kind == "removed" and name.startswith(leftovers.REMOVED):
        path = NODE_HOME / name
    elif kind in FOLDERS:
        path = NODE_HOME / FOLDERS[kind] / name
    else:
        raise Skipped("nothing of gpuctl's is called so")
    if name in ("", ".", "..") or os.path.basename(name) != name or "\0" in name:
        raise Skipped("nothing of gpuctl's is called so")
    if not leftovers.is_folder(path.parent) and path.parent != NODE_HOME:
        raise Skipped("{} is a link".format(path.parent))
    if not leftovers.is_folder(path):
        raise Skipped("it is no folder any more")
    return path


def _remove_files(name: str, *, sent: bool, heartbeat: Heartbeat) -> Tuple[int, Optional[str]]:
    """Remove the sent files of a project's folder, or the files of its runs, and folders that are then empty.

    Returns the bytes that are free, and why something is left: one file that stays does not keep the others.
    """
    path, freed = _path_of("code", name), 0
    folders, mounted = trees.folders_below(path)
    problem = trees.is_mounted(mounted[0]) if mounted else None
    for file, was_sent in list(leftovers.files_of_code(path)):
        if was_sent == sent:
            try:
                freed += trees.unlink(str(file))
            except FileNotFoundError:
                continue  # a node that shares this home was faster
            except OSError as error:
                problem = problem or trees.why(error)
            heartbeat()
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):  # folders with content stay
            os.rmdir(folder)
    record = path.with_name(name + (MANIFEST if sent else RECORD))
    # After sent files: the rest was written by runs, and the next sync sends all again.
    if (sent or problem is None) and record.exists():
        record.unlink()
    if not leftovers.is_folder(path):
        sync_lock.remove(str(path))
    return freed, problem
