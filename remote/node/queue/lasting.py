"""A process of the queue that outlives each connection, and is started again if it dies."""

import fcntl
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Callable

from remote.node import process

RESTART_S = 0.5
LOOK_S = 0.01
ATTEMPTS = 5
BEGIN_S = 5.0
"""Time for a process to take its lock."""


def begin(lock_path: Path, work: Callable[[int], None]) -> bool:
    """Have one process that does the work, with a child that does it. Returns whether it had to be started.

    `work`: gets the descriptor of the lock that says that the process lives, and may release it at its end.
    """
    if _is_held(lock_path):
        return False
    limit = time.monotonic() + BEGIN_S
    while not _is_held(lock_path) and time.monotonic() < limit:
        process.detach(lambda: _keep_running(lock_path, work))
        time.sleep(RESTART_S)  # an earlier one may be dying, and have the lock for a moment
    return True


def _is_held(lock_path: Path) -> bool:
    """Return whether a process has the lock."""
    with open(str(lock_path), "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def _keep_running(lock_path: Path, work: Callable[[int], None]) -> None:
    """Start a child until one ends well. Child and parent share the lock: one of them is enough to hold it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    lock = os.open(str(lock_path), os.O_WRONLY | os.O_CREAT, 0o600)
    for _ in range(ATTEMPTS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:  # another one lives, or somebody looks whether one does
            time.sleep(LOOK_S)
    else:
        return
    while True:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                log_path = str(lock_path) + ".log"
                log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(log, 2)
                os.close(log)
                work(lock)
                status = 0
            except Exception:  # noqa: BLE001 - the log has it, and the parent starts another child
                traceback.print_exc()
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1] == 0:
            return
        time.sleep(RESTART_S)  # it was killed, or a full disk could not take the queue's state
