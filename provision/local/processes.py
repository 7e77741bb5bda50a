"""The processes of local hosts: search and end.

A host's processes have two marks in their environment: the host's id and the cluster's folder. A process without
marks (it cleared its environment, or is one of Apple's own programs, whose environment macOS hides) belongs to the
host of its parent. Processes without a host are never ended.
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
    """The host and the cluster of a process."""

    host: str
    cluster: str
    """The cluster's folder."""


def marked() -> dict[psutil.Process, Mark]:
    """Return the processes of all local hosts of this user, without our own process."""
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
        except psutil.Error:  # gone, or another user's
            continue
        if HOST_MARK in environ:
            marks[process.pid] = Mark(host=environ[HOST_MARK], cluster=environ.get(CLUSTER_MARK, ""))
    owned = ((process, _owner(process.pid, parents, marks)) for process in processes)
    return {process: mark for process, mark in owned if mark and process.pid != os.getpid()}


def is_server(pid: int, *, host: str, config: str) -> bool | None:
    """Return whether that process is the SSH server of that host. `None`: the system hides it.

    Ids are random and never reused, so a process with a dead server's pid has another mark. All processes of the host
    have the mark, and only the server the last argument.
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
    """End the processes that `select` finds, with their children: SIGTERM, after `grace_s` SIGKILL.

    Blocks until they have ended, at most `timeout_s`. Returns the remaining processes.
    """
    known: set[psutil.Process] = set()
    signalled: set[psutil.Process] = set()
    begin = awake_s()
    quiet_scans = 0
    while True:
        # Found processes are remembered: without its parent, a process may not be recognized.
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
            elif process not in signalled:
                _signal(process, psutil.Process.terminate)
                signalled.add(process)
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
        return  # gone; or it stays alive and is reported as a leftover


def _leftover(process: psutil.Process) -> Leftover:
    try:
        command = " ".join(process.cmdline()[:3]) or process.name()
    except psutil.Error:
        command = "it can't be looked at"
    return Leftover(kind="process", id=str(process.pid), reason=f"It did not end after SIGKILL ({command}).")
