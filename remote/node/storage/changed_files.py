"""Files of a folder that are new or changed since a time, near the top first. Bounded in names and in time."""

import os
import stat
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

from remote.shared.trees import device_of, mount_points

MAX_LOOKED_AT = 1000 * 1000
"""Entries of folders."""
LOOK_S = 5.0
"""Time for one folder: the report of the run's end waits for it."""
LOOK_AT_ONCE = 256
"""Entries between two looks at the time."""
MAX_LISTED = 10 * 1000
MAX_NAME_BYTES = 2 * 1000 * 1000
"""Of all names that are listed."""
CACHES = (
    ".git", ".hg", ".svn", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".ipynb_checkpoints", ".tox", ".nox", "node_modules", ".DS_Store", ".lock",
)  # fmt: skip
"""Names of files and folders that nobody misses."""
CACHE_ENDINGS = (".pyc", ".lock", ".egg-info", ".swp", "~")
CACHE_BEGINNINGS = (".gpuctl-", ".nfs", ".~")
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
"""A folder that holds one of them is an environment of Python or conda."""

# Path relative to the project's folder, bytes, and when the disk says that it was changed, ns.
Output = Tuple[str, int, int]


class Changes:
    """The changed files: their number and size, and the files that are listed."""

    def __init__(self) -> None:
        self.listed: List[Output] = []
        self.files = 0
        self.bytes = 0
        self.whole = True
        """False: the folder was too large for a full listing."""
        self._name_bytes = 0

    def add(self, path: str, status: "os.stat_result") -> None:
        """Count one more file, and list it if the list has room."""
        self.files += 1
        self.bytes += status.st_size
        self._name_bytes += len(os.fsencode(path))
        if len(self.listed) < MAX_LISTED and self._name_bytes <= MAX_NAME_BYTES:
            self.listed.append((path, status.st_size, status.st_ctime_ns))


def find_changes(
    root: str,
    sent: Dict[str, Any],
    began_ns: int,
    changes: Optional[Changes] = None,
    *,
    look_s: float = LOOK_S,
    prefix: str = "",
    uid: Optional[int] = None,
) -> Changes:
    """Find new or changed files since `began_ns`, near the top first. `sent`: the sync's manifest.

    `changes`: where it is put, for who can't wait for the end. `prefix`: stands before the paths that are found.
    `uid`: of the user whose files count. `None`: files of all users.
    """
    changes = changes or Changes()
    pending: Deque[str] = deque([""])
    top, limit, looked_at = os.path.realpath(root), time.monotonic() + look_s, 0
    device, mounts = device_of(top), mount_points()
    while pending:
        inner = pending.popleft()
        if time.monotonic() > limit:
            changes.whole = False
            return changes
        try:
            with os.scandir(os.path.join(top, inner)) as entries:
                for entry in entries:
                    looked_at += 1
                    late = looked_at % LOOK_AT_ONCE == 0 and time.monotonic() > limit
                    if late or looked_at > MAX_LOOKED_AT:
                        changes.whole = False
                        return changes
                    if is_cache(entry.name):
                        continue
                    path = "{}/{}".format(inner, entry.name) if inner else entry.name
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue  # removed since then
                    if stat.S_ISDIR(status.st_mode):
                        inside = status.st_dev == device and entry.path not in mounts
                        if inside and not is_environment(entry.path):
                            pending.append(path)
                        continue
                    new = stat.S_ISREG(status.st_mode) and status.st_ctime_ns >= began_ns
                    if new and uid in (None, status.st_uid) and not as_sent(status, sent.get(path)):
                        changes.add(prefix + path, status)
        except OSError:
            continue  # removed since then, or not readable
    return changes


def names_in(folder: str) -> List[str]:
    """Return the sorted names in a folder. Empty list: it can't be listed, or was removed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def is_cache(name: str) -> bool:
    """Return whether a name is that of a cache or a temporary file."""
    return name in CACHES or name.endswith(CACHE_ENDINGS) or name.startswith(CACHE_BEGINNINGS)


def is_environment(folder: str) -> bool:
    """Return whether a folder is an environment of Python or conda."""
    return any(os.path.lexists(os.path.join(folder, mark)) for mark in ENVIRONMENT_MARKS)


def as_sent(status: "os.stat_result", sent: Optional[Sequence[Any]], path: str = "") -> bool:
    """Return whether a file is as its entry in the sync's manifest has it; a link, at `path`, has to lead there."""
    if sent is None:
        return False
    if stat.S_ISLNK(status.st_mode):
        return bool(path) and [os.readlink(path)] == list(sent)
    return stat.S_ISREG(status.st_mode) and list(sent[:2]) == [status.st_size, status.st_mtime_ns]
