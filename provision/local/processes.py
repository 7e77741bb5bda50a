"""Which processes belong to which local host, and how they are ended.

A host's processes carry two marks in their environment: the host's id and the cluster's folder. A process
that shows none (it cleared its environment, or is one of Apple's own programs, whose environment macOS
hides) belongs to the host that its parent belongs to. Processes that belong to no host are never touched.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from inventories.clocks import awake_s
from provision.provider import Leftover

HOST_MARK = "GPUCTL_LOCAL_HOST"
CLUSTER_MARK = "GPUCTL_LOCAL_CLUSTER"

POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Mark:
    """To whom a process belongs."""

    host: str
    cluster: str
    """The cluster's folder."""


def marked() -> dict[psutil.Process, Mark]:
    """The processes of all local hosts of this user, but for our own process."""
    parents: dict[int, int] = {}
    marks: dict[int, Mark] = {}
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if not _lives(process):
                continue
            parents[process.pid] = process.ppid()
            processes.append(process)
            environ = process.environ()
        except psutil.Error:  # gone, or somebody else's
            continue
        if HOST_MARK in environ:
            marks[process.pid] = Mark(host=environ[HOST_MARK], cluster=environ.get(CLUSTER_MARK, ""))
    owned = ((process, _owner(process.pid, parents, marks)) for process in processes)
    return {process: mark for process, mark in owned if mark and process.pid != os.getpid()}


def is_server(pid: int, *, host: str, config: str) -> bool | None:
    """Whether that process is the SSH server of that host; None: it can't be told.

    Ids are random and never used twice, so the mark also tells a process that got a dead server's pid. The
    mark is on all processes of the host; the last argument is the server's alone.
    """
    try:
        process = psutil.Process(pid)
        if not _lives(process):
            return False
        return process.environ().get(HOST_MARK) == host and process.cmdline()[-1:] == [config]
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return None


def end(
    select: Callable[[], Iterable[psutil.Process]], *, grace_s: float = 3.0, timeout_s: float = 10.0
) -> tuple[Leftover, ...]:
    """End the processes that `select` finds: SIGTERM, after `grace_s` SIGKILL; those that they start as well.

    Blocks until they are gone, at most `timeout_s`. Returns those that are left.
    """
    known: set[psutil.Process] = set()
    asked: set[psutil.Process] = set()
    begin = awake_s()
    quiet_scans = 0
    while True:
        # What was found once is remembered: with its parent gone, a process may no longer be told.
        known |= set(select())
        alive = [process for process in known if _is_alive(process)]
        # Twice: a process that was started during the first scan shows in the second.
        quiet_scans = 0 if alive else quiet_scans + 1
        if quiet_scans == 2:
            return ()
        waited_s = awake_s() - begin
        if waited_s > timeout_s:
            return tuple(_leftover(process) for process in alive)
        for process in alive:
            if waited_s > grace_s:
                _signal(process, psutil.Process.kill)
            elif process not in asked:
                _signal(process, psutil.Process.terminate)
                asked.add(process)
        if alive:
            time.sleep(POLL_S)


def _owner(pid: int, parents: dict[int, int], marks: dict[int, Mark]) -> Mark | None:
    while pid in parents and pid not in marks and pid > 1:
        pid = parents[pid]
    return marks.get(pid)


def _lives(process: psutil.Process) -> bool:
    return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and _lives(process)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, send: Callable[[psutil.Process], None]) -> None:
    try:
        send(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return  # gone; or it stays alive and is reported as left over


def _leftover(process: psutil.Process) -> Leftover:
    try:
        what = " ".join(process.cmdline()[:3]) or process.name()
    except psutil.Error:
        what = "it can't be looked at"
    return Leftover(kind="process", id=str(process.pid), reason=f"It did not end after SIGKILL ({what}).")
