"""Files and folders that survive a crash and that only their owner can read.

Every `OSError` leaves this module as `NoAccess`, with a sentence.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inventories.errors import NoAccess


class Inside:
    """A path inside a folder: an attribute of a class whose objects have the folder's `path`."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, folder: Any, kind: object = None) -> Path:  # noqa: ANN401 - any class with a `path`
        """Return the path inside this folder."""
        return Path(folder.path, *self._names)


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` with `data`: whoever reads it finds the old file or the new one, never a part.

    On return the new file is on the disk. Killed at any moment, the old file stands; at worst a hidden temporary
    file is left in its folder. The folder must exist.
    """
    with sentence("write", path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def private_dir(path: Path) -> None:
    """Make the folder and the parents that it lacks, each 0700 and on the disk. Idempotent.

    Sets mode 0700 on the folder, also if it exists. Existing parents keep their mode.
    """
    with sentence("make or close to others", path):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mode & 0o077:
                path.chmod(0o700)
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk: without it a new file may be gone after a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_bytes(path: Path) -> bytes | None:
    """Return the whole file, or `None` if it does not exist."""
    with sentence("read", path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def exists(path: Path) -> bool:
    """Return whether a path exists. Raises NoAccess if that can't be seen."""
    with sentence("look for", path):
        return path.exists()


@contextlib.contextmanager
def sentence(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the body into NoAccess, as `Can't <what> '<path>': <why>. <what to do>.` reads."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Make room on that disk" if full else "Give yourself access there"
        raise NoAccess(
            f"Can't {what} '{path}': {error.strerror or error}. {advice}, "
            "or set GPUCTL_HOME to another folder of your own."
        ) from error
