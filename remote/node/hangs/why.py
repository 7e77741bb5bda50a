"""The activity of a run's ranks on this node: processes, stacks, last collectives. Read only.

Each rank is asked by several ways, as one that hangs answers few of them: torch's worker server, else the signal
whose handler the rank's hook has registered, else the kernel's facts of the process.
"""

import ctypes
import json
import os
import platform
import time
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO, Dict, List, Optional

from remote.node import process
from remote.node.hangs import worker_server
from remote.node.hangs.rank_files import STACKS, rank_files
from remote.node.hangs.rank_hook.sitecustomize import STACKS_SIGNAL, note
from remote.node.home_folder import NODE_HOME
from remote.shared import frames
from remote.shared.constants import CODE, RANK_LOG, RANK_METRICS, RANK_RECORD
from remote.shared.files import read_json, read_text

CPU_S = 1.0
"""The time of which a rank's share of a CPU is, and its input and output."""
SIGNAL_S = 5.0
"""For the handler to write the stacks: it runs in the process, which has to get a CPU."""
QUIET_S = 0.1
"""Stacks that have not grown for this long are whole, once the handler is done."""
MOST_STACKS_BYTES = 256 * 1024
"""Of the end, where the main thread is."""
FIRST_LINES_BYTES = 8192
"""Of a metrics file, which begins with how the rank started."""
LAST_LINES_BYTES = 32768
"""Of a log, which may end with the exception of a rank that does not come to its end."""
MOST_CHILDREN_ASKED = 4
STOPPED = "Tt"
PROBLEMS = (OSError, ValueError, LookupError, RuntimeError)
"""Errors of a look at torn files, at an ending process, or without resources for a thread."""
PROC = Path("/proc")
MOST_CHILDREN = 64


def command_why(request: Dict[str, Any], output: BinaryIO) -> None:
    """`why`: one frame for each of `ranks` (numbers) of the run in `run_dir`, in any order."""
    run_dir = Path(request["run_dir"])
    for activity in examine_ranks(run_dir, [int(rank) for rank in request["ranks"]]):
        frames.write(output, {"t": frames.RANK, "rank": activity})


def examine_ranks(run_dir: Path, ranks: List[int]) -> List[Dict[str, Any]]:
    """Return the activity of each rank, read in parallel within some 15 s.

    Raises OSError with a sentence, and never invents values.
    """
    activities = {}  # type: Dict[int, Dict[str, Any]]
    failed = []  # type: List[str]

    def examine_rank(rank: int) -> None:
        try:
            activities[rank] = examine(run_dir, rank)
        except PROBLEMS as error:
            failed.append("rank {} could not be looked at: {!r}".format(rank, error))

    threads = [Thread(target=examine_rank, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise OSError("; ".join(sorted(failed)))
    return [activities[rank] for rank in ranks]


def examine(run_dir: Path, rank: int) -> Dict[str, Any]:
    """Return the activity of one rank. `state`: `None` without a process; `begun` and `ended` show its past."""
    record = read_json(run_dir / RANK_RECORD.format(rank))
    activity = {
        "rank": rank,
        "now": time.time(),
        "began_at": record.get("started_at"),
        "ended": bool(record) and "ended_at" in record,
        "state": None,
        "cpu": None,
        "busy": None,
        "io_bytes_per_s": None,
        "wrote_s": wrote_s(run_dir, rank),
        "wait_channel": "",
        "children": [],
        "stacks": "",
        "stacks_by": None,
        "server": None,
        "collectives": [],
        "code": str(NODE_HOME / CODE),
        "place": place_of(run_dir / RANK_METRICS.format(rank)),
        "log_tail": log_tail(run_dir / RANK_LOG.format(rank)),
    }  # type: Dict[str, Any]
    pid = process_of(record)
    if pid is None:
        return activity
    tree = [pid, *descendants(pid)]
    began, before = time.monotonic(), _work_of(tree)
    files = rank_files(run_dir, rank)
    activity["state"] = state_of(pid)
    activity["children"] = [{"pid": child, "state": state_of(child)} for child in tree[1:]]
    if activity["state"] and activity["state"] not in STOPPED:
        try:
            _ask(activity, pid, files)
        except PROBLEMS as error:
            note(files, "asking it: {!r}".format(error))
    if not activity["stacks"]:
        activity["stacks"], activity["stacks_by"] = read_of(pid, "stack"), "kernel"
    activity["wait_channel"] = read_of(pid, "wchan").strip("0\n")
    time.sleep(max(0.0, CPU_S - (time.monotonic() - began)))
    took, after = time.monotonic() - began, _work_of(tree)
    for name, value in after.items():
        # A process that has ended since then has taken its part along.
        activity[name] = round(max(0.0, value - before[name]) / took, 3)
    return activity


def wrote_s(run_dir: Path, rank: int) -> Optional[float]:
    """Return the time since a rank wrote into its log or its metrics; `None` if it never did."""
    sizes = [_status(run_dir / name.format(rank)) for name in (RANK_LOG, RANK_METRICS)]
    times = [status.st_mtime for status in sizes if status is not None and status.st_size]
    return max(0.0, time.time() - max(times)) if times else None


def place_of(metrics: Path) -> str:
    """Return the part of the model that a rank has, by the first line of its metrics; empty if unknown."""
    try:
        with metrics.open("rb") as file:
            lines = file.read(FIRST_LINES_BYTES).split(b"\n")[:-1]
        entries = [json.loads(line.decode()) for line in lines]
    except (OSError, ValueError, RecursionError):
        return ""
    places = [
        line.get("place") for line in entries if isinstance(line, dict) and line.get("event") == "start"
    ]
    return next((place for place in places if isinstance(place, str)), "")


def log_tail(log: Path) -> str:
    """Return the last lines of a rank's log where they have a traceback, else an empty text."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_LINES_BYTES))
            text = file.read(LAST_LINES_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return text if "Traceback" in text else ""


def _status(path: Path) -> Optional[os.stat_result]:
    try:
        return os.lstat(str(path))
    except OSError:
        return None


def _work_of(tree: List[int]) -> Dict[str, float]:
    """Return the work of these processes so far: CPU time, the same with the waiting for a CPU, and bytes."""
    cpu = sum(cpu_seconds(pid) or 0.0 for pid in tree)
    waited = sum(map(wait_seconds, tree))
    return {"cpu": cpu, "busy": cpu + waited, "io_bytes_per_s": float(sum(map(io_bytes, tree)))}


def _ask(activity: Dict[str, Any], pid: int, files: str) -> None:
    """Ask the rank itself, and some of its children, which write into its file."""
    socket = files + ".sock"
    if os.path.exists(socket):
        stacks = worker_server.ask(socket, "dump_traceback", MOST_STACKS_BYTES)
        activity["server"] = stacks is not None
        if stacks is not None:
            activity["stacks"], activity["stacks_by"] = stacks.decode(errors="replace"), "server"
        activity["collectives"] = worker_server.collectives(socket)
    if not activity["stacks"]:
        activity["stacks"], activity["stacks_by"] = stacks_by_signal(pid, files + STACKS), "signal"
    for child in activity["children"][:MOST_CHILDREN_ASKED]:
        if child["state"] and child["state"] not in STOPPED:
            child["stacks"] = stacks_by_signal(child["pid"], files + STACKS)


def process_of(record: Dict[str, Any]) -> Optional[int]:
    """The pid of a rank's process; `None` where it is gone, or another's by now."""
    pid, group = record.get("pid"), record.get("group")
    if pid is None or group is None or "ended_at" in record:
        return None
    try:
        same = os.getpgid(pid) == group or pid in process.children(group)
    except ProcessLookupError:
        return None
    return pid if same and process.birth(group) == record["birth"] else None


def stacks_by_signal(pid: int, path: str) -> str:
    """Return the stacks that the hook's handler writes; empty without a handler, or if it gets no turn.

    It writes into a descriptor by its number: where that is no longer the file, it may be one of the script's.
    """
    if not (holds_open(pid, path) and _has(read_of(pid, "status"), "SigCgt:")):
        return ""
    size = before = os.path.getsize(path)
    thread = send(pid)
    if thread is None:
        return ""
    limit, grew = time.monotonic() + SIGNAL_S, time.monotonic()
    whole = False
    while not whole and time.monotonic() < limit:
        time.sleep(QUIET_S / 5)
        now = os.path.getsize(path)
        if now != size:
            size, grew = now, time.monotonic()
        # The main thread's come last, and the handler may wait for a CPU between two lines.
        quiet = size > before and time.monotonic() - grew > QUIET_S
        whole = quiet and is_handled(pid, thread)
    with open(path, "rb") as file:
        file.seek(max(before, size - MOST_STACKS_BYTES))
        return file.read(MOST_STACKS_BYTES).decode(errors="replace")


TGKILL = {"x86_64": 234, "aarch64": 131}
"""The system call that sends a signal to one thread, by machine."""


def holds_open(pid: int, path: str) -> bool:
    """Return whether a process still has the file open.

    A script may close a file of ours, and open others in its place.
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
    """Return whether a thread has handled the signal.

    While its handler runs, the signal is blocked; before, it is pending. A handler that calls the user's own is
    not blocked while it runs.
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


def read_of(pid: int, name: str) -> str:
    """A file of the kernel's about a process; empty where it is gone, or may not be read."""
    return read_text(PROC / str(pid) / name)


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
