"""Files: written whole or not at all, listed without following links."""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

READ_BYTES = 1024 * 1024
TEMPORARY = ".gpuctl-"
"""Beginning of the names of temporary files."""


def temporary_beside(path: Path) -> Path:
    """A fresh hidden name in the folder of `path`: of no other process, nor of a node that shares the disk."""
    return path.with_name(TEMPORARY + os.urandom(8).hex())


def write_json(path: Path, document: Dict[str, Any]) -> None:
    """Write a document atomically and durably, mode 0600. Raises OSError and leaves the old file."""
    temporary = temporary_beside(path)
    handle = os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(document).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(str(temporary), str(path))
    except BaseException:
        os.unlink(str(temporary))
        raise
    folder = os.open(str(path.parent), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> Dict[str, Any]:
    """Read a document of `write_json`; empty for a missing or damaged file.

    A file that a crash or a full disk tore must not stop every later command on the node.
    """
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def digest_of(path: Path, heartbeat: Callable[[], None] = lambda: None) -> str:
    """A file's SHA-256. `heartbeat`: called now and then."""
    digest = hashlib.sha256()
    with open(str(path), "rb") as file:
        for body in iter(lambda: file.read(READ_BYTES), b""):
            digest.update(body)
            heartbeat()
    return digest.hexdigest()


def walk_files(root: Path) -> Iterator[Tuple[str, "os.stat_result"]]:
    """Everything below `root` that is not a folder: its path relative to `root`, and its lstat. By name."""
    for folder, folders, names in os.walk(str(root)):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted(names + links):
            path = os.path.join(folder, name)
            try:
                yield os.path.relpath(path, str(root)).replace(os.sep, "/"), os.lstat(path)
            except FileNotFoundError:
                continue


def is_regular(status: "os.stat_result") -> bool:
    """True for plain files: no links, pipes, sockets or devices."""
    return stat.S_ISREG(status.st_mode)


def size_of(path: Path) -> int:
    """Return the bytes of a plain file; -1 for a missing one, and for something else."""
    try:
        status = os.lstat(str(path))
    except FileNotFoundError:
        return -1
    return status.st_size if is_regular(status) else -1


def read_text(path: Path) -> str:
    """Return a file's text; empty if it can't be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
