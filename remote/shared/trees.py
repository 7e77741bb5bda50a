"""Trees of files: listed and removed without following links, and without leaving the disk that they are on."""

import contextlib
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from remote.shared.constants import BESIDE_PROJECT


def walk(root: Path, leave_out: Sequence[str] = ()) -> Iterator[str]:
    """Paths, relative to a folder, of all in it that is no folder, however deep; links are not followed.

    `leave_out`: names in the folder itself. Other disks that are mounted within are left out.
    """
    pending, device, mounts = [""], device_of(str(root)), mount_points()
    top = os.path.realpath(str(root))
    while pending:
        inner = pending.pop()
        try:
            with os.scandir(os.path.join(top, inner)) as entries:
                for entry in entries:
                    if not inner and entry.name in leave_out:
                        continue
                    path = os.path.join(inner, entry.name)
                    if not entry.is_dir(follow_symlinks=False):
                        yield path
                    elif device_of(entry.path) == device and entry.path not in mounts:
                        pending.append(path)
        except OSError:
            continue  # removed since then, or not readable


def folders_below(root: Path) -> Tuple[List[str], List[str]]:
    """Yield a folder and all within it, each before its content, and the mount points within.

    Targets of links are left out.
    """
    folders, device, mounts = [os.path.realpath(str(root))], device_of(str(root)), mount_points()
    mounted: List[str] = []
    for folder in folders:  # it grows
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    inside = device_of(entry.path) == device and entry.path not in mounts
                    (folders if inside else mounted).append(entry.path)
    return folders, mounted


def folders_of(paths: Iterable[str]) -> List[str]:
    """Return the folders around paths, except the root; each after its parent."""
    folders: Set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return sorted(folders)


def mount_points() -> Set[str]:
    """Return the mount points, also of a folder of the same disk; empty if the system does not list them."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return set()
    places = [line.split(b" ")[4] for line in lines]
    return {
        os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match.group(1), 8)]), place))
        for place in places
    }


def device_of(path: str) -> Optional[int]:
    """Return the disk of a path; `None` if the path does not exist."""
    try:
        return os.lstat(path).st_dev
    except OSError:
        return None


def remove_tree(root: Path, heartbeat: Optional[Callable[[], None]] = None) -> Tuple[int, Optional[str]]:
    """Remove a folder with all that is in it, however deep; the bytes that are free, and why something is left.

    Folders are moved up to `root` before they are emptied, so that no path grows too long. Where something is mounted
    within, that stays with all that is in it, and so does all where `root` is a link.
    """
    freed = 0
    problem: Optional[str] = None
    if root.is_symlink():
        return 0, f"{root.name}: it is a link"
    device = device_of(str(root))
    prefix, count, pending = os.urandom(8).hex(), 0, [str(root)]
    while pending:
        folder = pending.pop()
        try:
            os.chmod(folder, 0o700)
            with os.scandir(folder) as listing:
                entries = list(listing)
            for entry in entries:
                if heartbeat is not None:
                    heartbeat()
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        freed += unlink(entry.path)
                    elif device_of(entry.path) not in (device, None):
                        problem = problem or is_mounted(entry.path)
                    else:
                        count += 1
                        moved = os.path.join(str(root), f"{prefix}-{count}")
                        try:
                            os.rename(entry.path, moved)
                        except PermissionError:  # a folder that is closed can't be moved to another
                            os.chmod(entry.path, 0o700)
                            os.rename(entry.path, moved)
                        pending.append(moved)
                except FileNotFoundError:
                    continue  # a node that shares this home was faster
                except OSError as error:
                    problem = problem or why(error)
            if folder != str(root):
                freed += _rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = problem or why(error)
    try:
        freed += _rmdir(str(root))
    except FileNotFoundError:
        pass
    except OSError as error:
        problem = problem or why(error)
    return freed, problem


def is_mounted(path: str) -> str:
    """Say that a folder can't be removed as it is another disk's."""
    return f"{os.path.basename(path)}: something else is mounted there"


def unlink(path: str) -> int:
    """Remove a name; the bytes that are free by that."""
    status = os.lstat(path)
    os.unlink(path)
    return status.st_blocks * 512 if status.st_nlink == 1 else 0


def _rmdir(path: str) -> int:
    """Remove an empty folder; the bytes that are free by that."""
    size = os.lstat(path).st_blocks * 512
    os.rmdir(path)
    return size


def why(error: Exception) -> str:
    """Say of which file something failed, and of what."""
    if isinstance(error, OSError) and error.strerror:
        return f"{os.path.basename(str(error.filename))}: {error.strerror}"
    return str(error)


def matches(path: str, pattern: str, folder: str) -> bool:
    """Return whether a pattern names a file, or a folder around it.

    A pattern without `/` is compared with each name on the way; others with paths, from the project's folder or from
    the `folder` in it in which the ranks run. Outside the project, also from the home folder or the run's folder.
    """
    pattern = pattern.rstrip("/")
    first_part, _, inner = path.partition("/")
    if (
        first_part in BESIDE_PROJECT
        and inner
        and matches(inner, pattern[2:] if pattern[:2] == "~/" else pattern, ".")
    ):
        return True
    parts = path.split("/")
    if "/" not in pattern:
        return any(fnmatchcase(part, pattern) for part in parts)
    starts = {pattern} if folder == "." else {pattern, "{}/{}".format(folder, pattern)}
    paths = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return any(fnmatchcase(candidate, start) for candidate in paths for start in starts)
