"""The lock of a project's folder: one sync at a time changes it, of all nodes that share the disk it is on."""

import contextlib
import errno
import fcntl
import time
from typing import Callable, Iterator

DEADLINE_S = 3600.0
"""Another sync may have much to send."""
POLL_S = 0.1
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
"""What disks say that have none."""


@contextlib.contextmanager
def alone(project: str, heartbeat: Callable[[], None], *, deadline_s: float = DEADLINE_S) -> Iterator[None]:
    """Hold the lock, in a file beside the folder; wait for it. Raises TimeoutError after the deadline."""
    limit = time.monotonic() + deadline_s
    with open(project + ".lock", "ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
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
                break
            heartbeat()
            time.sleep(POLL_S)
        yield
