"""The signal that makes a rank write its stacks, sent so that its work is not disturbed."""

import ctypes
import os
import platform
from typing import List, Optional

from remote.node.hangs.proc import read_of
from remote.node.hangs.rank_hook.sitecustomize import STACKS_SIGNAL

TGKILL = {"x86_64": 234, "aarch64": 131}
"""The system call that sends a signal to one thread, by machine."""


def handles_signal(pid: int) -> bool:
    """Return whether a process has a handler for the signal: without it, the signal would kill the process."""
    return _has(read_of(pid, "status"), "SigCgt:")


def holds_open(pid: int, path: str) -> bool:
    """Return whether a process still has the file open: a script may close a file of ours, and open others in its
    place.
    """
    folder = "/proc/{}/fd".format(pid)
    try:
        for name in os.listdir(folder):
            link = "{}/{}".format(folder, name)
            if os.path.basename(os.readlink(link)) == os.path.basename(path):
                return os.path.samefile(link, path)
    except OSError:  # it is gone, or just closed it
        return False
    return False


def send(pid: int) -> Optional[int]:
    """Send the signal, and return the thread that takes it; `None`: it could not be sent.

    A thread other than the main one is preferred: a signal ends a sleep or a read in C code early.
    """
    thread, number = _other_thread(pid), TGKILL.get(platform.machine())
    try:
        if thread is None or number is None:
            os.kill(pid, STACKS_SIGNAL)
            return pid
        return thread if ctypes.CDLL(None).syscall(number, pid, thread, STACKS_SIGNAL) == 0 else None
    except (ProcessLookupError, PermissionError):
        return None


def is_handled(pid: int, thread: int) -> bool:
    """Return whether a thread has handled the signal: it is neither pending nor blocked, as it is while its handler
    runs.

    A handler that calls the user's own is not blocked while it runs.
    """
    status = read_of(pid, "task/{}/status".format(thread))
    return not any(_has(status, mask) for mask in ("SigBlk:", "SigPnd:", "ShdPnd:"))


def _other_thread(pid: int) -> Optional[int]:
    """A thread that takes the signal and is not the main one."""
    try:
        threads: List[int] = sorted(map(int, os.listdir("/proc/{}/task".format(pid))), reverse=True)
    except OSError:
        return None
    for thread in threads:
        status = read_of(pid, "task/{}/status".format(thread))
        if thread != pid and status and not _has(status, "SigBlk:"):
            return thread
    return None


def _has(status: str, mask: str) -> bool:
    """Return whether the signal is in a mask of a status file of the kernel's."""
    for line in status.splitlines():
        if line.startswith(mask):
            return bool(int(line.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1)
    return False
