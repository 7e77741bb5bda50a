"""The staging folder, in which files grow until they are whole.

Hidden in the target folder, and removed with its sync. Within it, as a rename is only atomic on one disk. A
process that was killed leaves its folder behind; the next one sees by its lock that nobody is using it, and
removes it. Folders of syncs that go on, from another node with the same disk too, are left alone.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Iterable

from remote.shared.files import temporary_beside

PREFIX = ".gpuctl-incoming-"
PARTIAL = ".gpuctl-partial"
"""rsync's partial files at an interruption: the next sync continues with them. Removed when a sync is complete."""


class Staging:
    """A folder of a sync's own, there once it is made; a context manager that removes it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.name = PREFIX + os.urandom(8).hex()
        self.path = os.path.join(root, self.name)
        self._count = 0
        self._lock = -1

    def __enter__(self) -> "Staging":  # noqa: PYI034 - Self is younger than the node's Python
        return self

    def make(self) -> None:
        """Make the folder, and hold its lock until the end."""
        os.mkdir(self.path, 0o700)
        self._lock = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(OSError):  # a disk without locks: a folder that is left behind there stays
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            _remove(self.root, self.path)
            os.close(self._lock)

    def fresh(self) -> str:
        """A path that is not in use yet."""
        self._count += 1
        return "{}/{}".format(self.path, self._count)

    def reaches(self, folders: Iterable[str]) -> bool:
        """Return whether a rename from here into each folder is atomic: all are on one disk."""
        device = os.stat(self.path).st_dev
        return all(os.stat(os.path.join(self.root, folder)).st_dev == device for folder in folders)


def put(temporary: str, target: str) -> None:
    """Move a whole file, or a link, to its place: by a rename, on another disk from a copy in its folder.

    Raises OSError.
    """
    try:
        os.replace(temporary, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        partial = str(temporary_beside(Path(target)))
        try:
            shutil.copy2(temporary, partial, follow_symlinks=False)
            os.replace(partial, target)
        except BaseException:
            if os.path.lexists(partial):
                os.unlink(partial)
            raise


def remove_left_behind(root: str) -> None:
    """Remove the folders of syncs whose process was killed. Never raises for what can't be removed."""
    for name in os.listdir(root):
        if name.startswith(PREFIX):
            folder = os.path.join(root, name)
            if _nobody_uses(folder):
                _remove(root, folder)


def _remove(root: str, folder: str) -> None:
    """Remove a staging folder. What rsync has of a file, `.name.XXXXXX`, goes where its next run looks for it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith("."):
                os.makedirs(os.path.join(root, PARTIAL), 0o700, exist_ok=True)
                os.replace(os.path.join(folder, name), os.path.join(root, PARTIAL, name[1:-7]))
    shutil.rmtree(folder, ignore_errors=True)


def _nobody_uses(folder: str) -> bool:
    try:
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR)
    except OSError:
        return False  # just being made or removed
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
