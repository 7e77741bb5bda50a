"""A lock between processes that a dead holder can't keep.

The kernel holds the lock (`flock`) and drops it with the process, however that ends. The lock file only names its
holder.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from inventories.clocks import awake_s
from inventories.disk import files
from inventories.errors import Locked

POLL_S = 0.05

_held: set[int] = set()
"""Open lock files of this process."""


@contextlib.contextmanager
def hold(
    path: Path,
    *,
    subject: str,
    command: str,
    wait_s: float = 10.0,
    on_wait: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold the lock file `path` while the body runs. Excludes other processes and other threads.

    `subject`: a noun for the message, as in "cluster 'default'"; `command`: the holder's command, for others to
    see. Where another one holds it, `on_wait` is called once with a sentence, and after `wait_s` Locked is raised
    with the holder's pid and command. Makes the folder of the file.
    """
    files.private_dir(path.parent)
    handle = _acquire(path, subject=subject, wait_s=wait_s, on_wait=on_wait)
    owner = os.getpid()
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "command": command}).encode(), 0)
        yield
    finally:
        # A forked child that leaves the body must not unlock what its parent holds.
        if os.getpid() == owner:
            _held.discard(handle)
            os.ftruncate(handle, 0)
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _acquire(path: Path, *, subject: str, wait_s: float, on_wait: Callable[[str], None] | None) -> int:
    deadline = awake_s() + wait_s
    announced = False
    while True:
        handle = _try(path)
        if handle is not None:
            return handle
        try:
            entry = json.loads(path.read_bytes())
            by = str(entry["command"]), int(entry["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            by = None
        if awake_s() >= deadline:
            way = "" if by is not None and by[1] == os.getpid() else ", or end that process,"
            raise Locked(
                f"{subject[:1].upper()}{subject[1:]} is in use by {_holder(by)}. "
                f"Wait until that is done{way} and try again."
            )
        if on_wait is not None and not announced and by is not None:
            on_wait(f"Waiting up to {wait_s:g} s for {_holder(by)}, which works on {subject}.")
            announced = True
        time.sleep(min(POLL_S, max(0.0, deadline - awake_s())))


def _try(path: Path) -> int | None:
    """The open, locked file; `None` where another one holds it, or it was removed while we opened it."""
    with files.sentence("lock", path):
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            files.private_dir(path.parent)
            return None
        _held.add(handle)
        locked = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A holder may remove the file: then a lock on it excludes nobody.
            try:
                locked = os.path.samestat(os.fstat(handle), path.stat())
            except FileNotFoundError:
                locked = False
        except BlockingIOError:
            pass
        finally:
            if not locked:
                _held.discard(handle)
                os.close(handle)
    return handle if locked else None


def _holder(signature: tuple[str, int] | None) -> str:
    if signature is None:
        return "another process"
    command, pid = signature
    return f"`{command}` " + (
        "in another thread of this program" if pid == os.getpid() else f"(process {pid})"
    )


def _forget_in_child() -> None:
    """A forked child closes its copies: it may outlive us, and must not keep the lock."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
