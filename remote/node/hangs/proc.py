"""Facts of the kernel about a process (Linux; elsewhere nothing)."""

import os
from pathlib import Path
from typing import List, Optional

from remote.node import process

PROC = Path("/proc")
MOST_CHILDREN = 64


def read_of(pid: int, name: str) -> str:
    """A file of the kernel's about a process; empty where it is gone, or may not be read."""
    try:
        return (PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""


def state_of(pid: int) -> Optional[str]:
    """The letter that the kernel has for it: R, S, D, T, Z. `None`: it is gone, or this is no Linux."""
    fields = _stat(pid)
    return fields[0] if fields else None


def cpu_seconds(pid: int) -> Optional[float]:
    """The CPU time that a process has used; `None` where it is not known."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else None


def wait_seconds(pid: int) -> float:
    """The time that its threads have waited for a CPU: who works on a busy machine waits as well."""
    tasks = sorted((PROC / str(pid) / "task").glob("[0-9]*"))
    statistics = (read_of(pid, "task/{}/schedstat".format(task.name)).split() for task in tasks)
    return sum(int(fields[1]) for fields in statistics if len(fields) > 1) / 1e9


def io_bytes(pid: int) -> int:
    """The bytes that a process has read and written."""
    lines = (line.split(": ") for line in read_of(pid, "io").splitlines())
    return sum(int(line[1]) for line in lines if line[0] in ("rchar", "wchar"))


def descendants(pid: int) -> List[int]:
    """Return a process's descendants: DataLoader workers, and the processes that start them."""
    pids = process.children(pid)
    for child in pids:
        if len(pids) >= MOST_CHILDREN:
            break
        pids += process.children(child)
    return pids[:MOST_CHILDREN]


def _stat(pid: int) -> List[str]:
    return read_of(pid, "stat").rpartition(")")[2].split()
