"""Waiting for dpkg: freshly booted machines update themselves, and whoever does so must never be killed."""

import os
import time
from pathlib import Path
from typing import Callable, Optional

LOCK = Path("/var/lib/dpkg/lock-frontend")
LOCKS = Path("/proc/locks")
POLL_S = 0.5
EVERY_S = 10.0


def wait_for_dpkg(deadline_s: float, say: Callable[[str], None], lock: Path = LOCK) -> None:
    """Return when no process holds dpkg's lock, or where there is none. Tells `say` who holds it.

    Raises TimeoutError with a sentence after `deadline_s` seconds. Needs no root: the kernel lists all locks.
    """
    began, next_s = time.monotonic(), 0.0
    while True:
        pid = holder(lock)
        if pid is None:
            return
        who = "{} (pid {})".format(_name(pid), pid)
        waited_s = time.monotonic() - began
        if waited_s > deadline_s:
            raise TimeoutError(
                "{} has held dpkg's lock for {:.0f} s: let it end (`gpuctl exec -- ps -fp {}` shows it), and try "
                "again".format(who, waited_s, pid)
            )
        if waited_s >= next_s:
            next_s = waited_s + EVERY_S
            say("waiting for {}, which holds dpkg's lock".format(who))
        time.sleep(POLL_S)


def holder(lock: Path) -> Optional[int]:
    """The process that holds a lock on a file; None: nobody, or the kernel does not say (not Linux)."""
    try:
        status, text = os.stat(str(lock)), LOCKS.read_text()
    except OSError:
        return None
    return holder_in(text, os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)


def holder_in(text: str, major: int, minor: int, inode: int) -> Optional[int]:
    """The same in the text of /proc/locks: `1: POSIX  ADVISORY  WRITE 4711 fd:01:131 0 EOF`."""
    for line in text.splitlines():
        words = line.split()
        # A waiting process is listed with an arrow as its second word.
        if len(words) == 8 and words[5] == "{:02x}:{:02x}:{}".format(major, minor, inode):
            return int(words[4])
    return None


def _name(pid: int) -> str:
    try:
        return Path("/proc/{}/comm".format(pid)).read_text().strip()
    except OSError:
        return "a process"
