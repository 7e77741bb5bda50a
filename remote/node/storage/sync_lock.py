"""The lock of a project's folder: one sync at a time changes it, of all nodes that share the disk it is on."""

import contextlib
import errno
import fcntl
import os
import time
from typing import BinaryIO, Callable, Iterator

DEADLINE_S = 3600.0
"""Another sync may have much to send."""
POLL_S = 0.1
SUFFIX = ".lock"
"""After the path of the project's folder."""
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
"""Errors of disks without locks."""


@contextlib.contextmanager
def alone(project: str, heartbeat: Callable[[], None], *, deadline_s: float = DEADLINE_S) -> Iterator[None]:
    """Hold the lock, in a file next to the folder; wait for it. Raises TimeoutError after the deadline."""
    limit = time.monotonic() + deadline_s
    while True:
        with open(project + SUFFIX, "ab") as lock:
            _wait(lock, project, heartbeat, limit, deadline_s)
            if _is_at(lock, project + SUFFIX):  # else it was removed, and another process may hold a new one
                yield
                return


def remove(project: str) -> None:
    """Remove the file of the lock, unless a process holds it; a newer file in its place stays."""
    with contextlib.suppress(OSError), open(project + SUFFIX, "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(lock, project + SUFFIX):
            os.unlink(project + SUFFIX)


def _wait(
    lock: BinaryIO, project: str, heartbeat: Callable[[], None], limit: float, deadline_s: float
) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > limit:
                sentence = (
                    "files are still being sent into {} by another command or node after {:.0f} minutes; "
                    "run the command again once that is over"
                )
                raise TimeoutError(sentence.format(project, deadline_s / 60)) from error
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            return
        heartbeat()
        time.sleep(POLL_S)


def _is_at(lock: BinaryIO, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
