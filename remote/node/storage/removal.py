"""Removal of leftovers on a node: named items, examined again, and nothing else.

An item first gets a hidden name, so that no process uses a partly removed folder; no link is followed.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from remote.node import run_state
from remote.node.home_folder import NODE_HOME
from remote.node.storage import leftovers, sync_lock
from remote.node.storage.leftovers import Leftover
from remote.node.storage.pushed import MANIFEST, RECORD
from remote.node.storage.sending import Heartbeat
from remote.shared import frames, trees
from remote.shared.files import digest_of

LOCK_DEADLINE_S = 20.0
LOCK_POLL_S = 0.1


def command_clean(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `clean`: remove `items` ([kind, name]).

    The answer is `cleaned` with the bytes `freed`, the number of items `removed`, and the `retained` ones: `kind`,
    `name`, `why`.

    `digests`: name of a run → path in its folder → SHA-256 of its copies, of which any will do. A run with a file of
    another content is kept.

    Sends `beat` now and then. Raises OSError, before anything is removed, if a run is active.
    """
    heartbeat, freed = Heartbeat(output), 0
    keys = [(kind, name) for kind, name in request["items"]]
    reasons: Dict[Tuple[str, str], Optional[str]] = dict.fromkeys(keys, "it is no folder any more")
    doomed: List[Tuple[Tuple[str, str], Path]] = []
    with open(str(NODE_HOME / "launch.lock"), "wb") as lock:
        _take(lock, heartbeat)
        busy_runs = run_state.active_runs()
        if busy_runs:
            raise OSError("the run {} is going on here, and nothing was removed".format(busy_runs[0]))
        for leftover in leftovers.leftovers():
            key = (leftover.kind, leftover.name)
            if key not in reasons:
                continue
            try:
                reasons[key] = leftover.keep or _difference(leftover, request["digests"], heartbeat)
                if reasons[key]:
                    continue
                if leftover.kind in ("code", "written"):
                    bytes_freed, reasons[key] = remove_code(leftover, heartbeat)
                    freed += bytes_freed
                else:
                    doomed.append((key, _set_aside(leftover)))
            except OSError as error:
                reasons[key] = trees.why(error)
    for key, path in doomed:
        bytes_freed, reasons[key] = trees.remove_tree(path, heartbeat)
        freed += bytes_freed
    retained = [{"kind": key[0], "name": key[1], "why": why} for key, why in reasons.items() if why]
    answer = {"freed": freed, "removed": len(reasons) - len(retained), "retained": retained}
    frames.write(output, dict(answer, t=frames.CLEANED))


def _take(lock: BinaryIO, heartbeat: Heartbeat) -> None:
    """Hold the lock under which runs are launched. Raises OSError if another process holds it for long."""
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


def _difference(
    leftover: Leftover, digests: Dict[str, Dict[str, List[str]]], heartbeat: Heartbeat
) -> Optional[str]:
    """Return the reason to keep a run with a file that differs from its copy, though it may be as large."""
    known = digests.get(leftover.name, {}) if leftover.kind == "run" else {}
    for inner, copies in known.items():
        if digest_of(leftover.path / inner, heartbeat) not in copies:
            return "{} is not what was brought of it; --all removes it".format(inner)
    return None


def _set_aside(leftover: Leftover) -> Path:
    """Give a folder a hidden name, and return its new path."""
    if leftover.path.name.startswith(leftovers.REMOVED):
        return leftover.path
    aside = NODE_HOME / (leftovers.REMOVED + os.urandom(8).hex())
    leftover.path.rename(aside)
    return aside


def remove_code(leftover: Leftover, heartbeat: Heartbeat) -> Tuple[int, Optional[str]]:
    """Remove the sent files of a project's folder, or the files that runs wrote, and folders that are empty then.

    Returns the bytes freed, and why something is left: a file that can't be removed does not keep the others.
    """
    freed, sent, path = 0, leftover.kind == "code", leftover.path
    folders, mounted = trees.folders_below(path)
    problem = trees.is_mounted(mounted[0]) if mounted else None
    for file in leftovers.files_of_code(path, sent_ones=sent):
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
    record = path.with_name(path.name + (MANIFEST if sent else RECORD))
    # After sent files: the rest was written by runs, and the next sync sends all again.
    if (sent or problem is None) and record.exists():
        record.unlink()
    if not leftovers.is_folder(path):
        sync_lock.remove(str(path))
    return freed, problem
