"""Observations of a node around a rank that fails: memory that the kernel took back, /dev/shm, NCCL.

Read now and then while the rank runs: when it has ended, its memory is free again.
"""

import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from remote.node.runs import nccl_log
from remote.shared.files import read_text

LOOK_S = 2.0
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
KERNEL_LOG = "/dev/kmsg"
SHM = "dev/shm"
MOST_LOG_BYTES = 4 * 1024 * 1024

LIMITS = {
    "Max address space": "address_space_bytes",
    "Max file size": "max_file_bytes",
    "Max open files": "max_open_files",
    "Max processes": "max_processes",
}
"""Lines of /proc/PID/limits, and the facts that they are."""

_KILLED = re.compile(r"[Kk]illed process (\d+) \(([^)]*)\)(?:.*?anon-rss:(\d+)kB)?")
_LIMIT = re.compile(r"memory: usage \d+kB, limit (\d+)kB")


class EndFacts:
    """The facts of one rank, gathered while it runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = self._looked = time.monotonic()
        self._group = memory_group(pid)
        self._kills = self._count()
        self._on_machine = kills_in(PROC / "vmstat")
        self._kill_at = None  # type: Optional[float]
        self._shm = None  # type: Optional[Tuple[int, int]]
        self._limits = limits(pid)
        self._poll()

    def poll(self) -> None:
        """Look again, if it is time."""
        if time.monotonic() - self._looked >= LOOK_S:
            self._poll()

    def look_at_limits(self) -> None:
        """Read the limits that the rank has by now, also of one that has just ended and was not waited for."""
        self._limits = limits(self._pid) or self._limits

    def document(self, nccl_file: str, interface: str) -> Dict[str, Any]:
        """Return all observations, after the rank has ended. `interface`: NCCL's setting."""
        self._poll()
        on_machine = kills_in(PROC / "vmstat")
        killed = self._kill_at is not None or on_machine != self._on_machine
        kill = last_kill(kernel_log(), self._pid, self._began) if killed else {}
        if kill.pop("pid", None) == self._pid and self._kill_at is None:
            self._kill_at = time.time()
        facts = {
            "no_memory_kill": on_machine is not None and not killed,
            "memory_kill_at": self._kill_at,
            "memory_limit_bytes": memory_limit(self._group),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        }  # type: Dict[str, Any]
        facts.update(self._limits)
        if self._kill_at is not None:
            facts.update(kill)
        if self._shm is not None:
            facts.update(shm_bytes=self._shm[0], shm_least_free_bytes=self._shm[1])
        interfaces, warning = nccl_log.network(nccl_file)
        named = [interface] if interface else []
        facts.update(nccl_interfaces=interfaces or named, nccl_warning=warning)
        return facts

    def _poll(self) -> None:
        self._looked = time.monotonic()
        group = memory_group(self._pid)
        if group is not None and group != self._group:
            self._group, self._kills = group, None
        kills = self._count()
        if kills is not None:
            if self._kills is not None and kills > self._kills:
                self._kill_at = time.time()
            self._kills = kills
        shm = shared_memory(self._pid)
        if shm is not None:
            self._shm = (
                shm[0],
                shm[1] if self._shm is None or self._shm[0] != shm[0] else min(shm[1], self._shm[1]),
            )

    def _count(self) -> Optional[int]:
        """Return how often the kernel has killed in the rank's control group, else on the whole machine."""
        return kills_in(PROC / "vmstat") if self._group is None else kill_count(self._group)


def memory_group(pid: int) -> Optional[Path]:
    """Return the folder of a process's memory control group; `None` without one, and for an ended process."""
    lines = read_text(PROC / str(pid) / "cgroup").splitlines()
    status = read_text(PROC / str(pid) / "stat").rpartition(")")[2].split()[:1]
    if status in ([], ["Z"], ["X"]):  # it is gone, or counted to the root by now
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        first = number == "0" and not controllers
        if not first and "memory" not in controllers.split(","):
            continue
        top = CGROUPS if first else CGROUPS / "memory"
        # A container sees its own group at the top, and may read another path here.
        for folder in (top / path.lstrip("/"), top):
            if kill_count(folder) is not None:
                return folder
    return None


def kill_count(group: Path) -> Optional[int]:
    """Return how many of a group's processes the kernel has killed for lack of memory.

    `None`: the kernel does not report that.
    """
    counts = kills_in(group / "memory.events")
    return kills_in(group / "memory.oom_control") if counts is None else counts


def kills_in(file: Path) -> Optional[int]:
    """The number in a line `oom_kill N`."""
    lines = read_text(file).splitlines()
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None


def memory_limit(group: Optional[Path]) -> Optional[int]:
    """Return the lowest limit of this group and of the ones above, if it is below the machine's memory."""
    limits: List[int] = []
    while group is not None and group != CGROUPS.parent:
        for name in ("memory.max", "memory.limit_in_bytes"):
            word = read_text(group / name).strip()
            limits += [int(word)] if word.isdecimal() else []
        group = group.parent
    lowest = min(limits) if limits else None
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return lowest if lowest is not None and lowest < has else None


def limits(pid: int) -> Dict[str, int]:
    """Return the soft limits of a process that has some; empty where it is gone."""
    lines = read_text(PROC / str(pid) / "limits").splitlines()
    values = {}
    for title, name in LIMITS.items():
        for line in lines:
            soft = line[len(title) :].split()[:1] if line.startswith(title + " ") else []
            if soft and soft[0].isdecimal():
                values[name] = int(soft[0])
    return values


def shared_memory(pid: int) -> Optional[Tuple[int, int]]:
    """Return the size of /dev/shm as a process sees it, and its free bytes.

    `None`: the process has no /dev/shm, or has ended.
    """
    try:
        disk = os.statvfs(str(PROC / str(pid) / "root" / SHM))
    except OSError:
        return None
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


def kernel_log() -> str:
    """The kernel's log as far as this user may read it: one record a line, with microseconds since the boot."""
    records: List[bytes] = []
    try:
        handle = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while sum(map(len, records)) < MOST_LOG_BYTES:
            try:
                records.append(os.read(handle, 8192))
            except BrokenPipeError:  # this record was overwritten while it was read
                continue
    except OSError:  # no further groups
        pass
    finally:
        os.close(handle)
    return b"".join(records).decode(errors="replace")


def last_kill(log: str, pid: int, since: float) -> Dict[str, Any]:
    """Return the kernel's record of a kill for lack of memory: of this process, else the last since then."""
    kill: Dict[str, Any] = {}
    limit: Optional[int] = None
    for line in log.splitlines():
        head, _, text = line.partition(";")
        fields = head.split(",")
        if len(fields) < 3 or not fields[2].isdecimal() or int(fields[2]) / 1e6 < since - LOOK_S:
            continue
        limited, killed = _LIMIT.match(text), _KILLED.search(text)
        if limited:
            limit = int(limited[1]) * 1024
        if not killed:
            continue
        group = text.startswith("Memory cgroup")
        kill = {
            "pid": int(killed[1]),
            "killed_process": killed[2],
            "killed_bytes": int(killed[3]) * 1024 if killed[3] else None,
            "used_up": "group" if group else "node",
        }
        if group and limit is not None:
            kill["memory_limit_bytes"] = limit
        if kill["pid"] == pid:
            break
    return kill
