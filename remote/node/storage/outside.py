"""Files that a run wrote outside the project's folder: listed with their place, and never sent.

The launch names the paths to look at, as the script's sources have them. A file counts as in `outputs`.
"""

import glob
import os
import re
import stat
import time
from fnmatch import translate
from typing import Any, Dict, Iterator, List, Optional, Pattern, Sequence, Tuple

from remote.node.home_folder import NODE_HOME
from remote.node.storage.changed_files import find_changes, is_cache, names_in
from remote.shared.constants import CODE

LOOK_S = 2.0
MAX_LISTED = 100
MAX_MATCHES = 10 * 1000
"""Paths that match one pattern."""
SHARED = ("/", "/dev/shm", "/home", "/mnt", "/tmp", "/var/tmp")  # noqa: S108 - no file is made there
"""Folders in which a file's name has to be one of the script's: other programs write there, too."""
SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")

Outside = Tuple[str, int, int]
"""Path, bytes, and the number of files. A folder's path ends with a slash."""


def written_outside(
    root: str, code: Dict[str, Any], began_ns: int, left_out: Sequence[str] = ()
) -> List[Outside]:
    """Return the new files at the `paths` of the `code` record, and folders with such files, near the root first.

    `paths`: patterns; relative ones are seen from the folder in which the ranks run. `names`: of files and folders in
    places that other programs share. `left_out`: folders whose files are listed elsewhere.
    """
    home, limit = os.path.expanduser("~"), time.monotonic() + LOOK_S
    listed: Dict[str, Outside] = {}
    known = re.compile("|".join(map(translate, code.get("names", ()))) or r"\b\B")
    apart = [os.path.realpath(path) for path in (root, str(NODE_HOME), *left_out)]
    for pattern in code.get("paths", ()):
        pattern = os.path.normpath(os.path.join(root, code["folder"], os.path.expanduser(pattern)))
        while os.path.basename(pattern) == "*":
            pattern = os.path.dirname(pattern)
        for path in _places(pattern, home, apart, known, limit):
            left_s = limit - time.monotonic()
            if left_s <= 0 or len(listed) >= MAX_LISTED:
                return _without_nested(listed)
            entry = new_entry(path, began_ns, left_s)
            if entry is not None:
                listed[entry[0]] = entry
    return _without_nested(listed)


def _places(
    pattern: str, home: str, apart: Sequence[str], names: Pattern[str], limit: float
) -> Iterator[str]:
    """Yield the paths of a pattern, and of a shared folder the ones with one of the names; until the limit."""
    for number, path in enumerate(glob.iglob(pattern)):
        if number >= MAX_MATCHES or time.monotonic() > limit:
            return
        real = os.path.realpath(path)
        if path not in (*SHARED, home) and not any(_is_in(folder, real) for folder in apart):
            if not _is_left_out(path, real, apart):
                yield path
            continue
        for name in names_in(path):
            if time.monotonic() > limit:
                return
            if name.startswith(".") or not names.match(name):
                continue
            inner = os.path.join(path, name)
            real = os.path.realpath(inner)
            around = any(_is_in(folder, real) for folder in apart)
            if not around and not _is_left_out(inner, real, apart):
                yield inner


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_left_out(path: str, real: str, apart: Sequence[str]) -> bool:
    """Return whether a path is of the system or in a folder that is listed elsewhere. Other projects are not."""
    system = any(_is_in(path, folder) for folder in SYSTEM) and not path.startswith("/dev/shm/")  # noqa: S108
    of_other_project = _is_in(real, os.path.realpath(str(NODE_HOME / CODE))) and not _is_in(real, apart[0])
    return (
        is_cache(os.path.basename(path))
        or system
        or (not of_other_project and any(_is_in(real, folder) for folder in apart))
    )


def new_entry(path: str, began_ns: int, look_s: float) -> Optional[Outside]:
    """Return a file's entry, or a folder's with its new files. `None`: nothing is new, or it is of another user."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        new_files = find_changes(path, {}, began_ns, look_s=look_s, uid=os.geteuid())
        return (from_home(path) + "/", new_files.bytes, new_files.files) if new_files.files else None
    new = stat.S_ISREG(status.st_mode) and status.st_ctime_ns >= began_ns and status.st_uid == os.geteuid()
    return (from_home(path), status.st_size, 1) if new else None


def from_home(path: str) -> str:
    """Return a path relative to the home folder, or as it is if it lies elsewhere."""
    home = os.path.expanduser("~").rstrip("/") + "/"
    return path[len(home) :] if path.startswith(home) else path


def _without_nested(listed: Dict[str, Outside]) -> List[Outside]:
    """Return the entries that lie in no folder of the others."""
    folders = [path for path in listed if path.endswith("/")]
    return [
        listed[path]
        for path in sorted(listed)
        if not any(path != folder and path.startswith(folder) for folder in folders)
    ]
