"""The end of a node's part in a run: its ranks get a signal and time to save, and so does what they leave behind.

One grace counts for all of them. It begins with the signal, or with the end of the rank that failed first; SIGKILL
follows. `ending.json` in the run's folder shows an end that takes longer than a moment.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set

from remote.node import process
from remote.shared.constants import ENDING, RANK_RECORD, RANKS, STOP_GRACE
from remote.shared.files import read_json, write_json

GRACE_S = 30.0
"""For ranks to save, where a run's launch sets no other."""
LOOK_S = 0.2
WATCH_S = 0.5
MOMENT_S = 2.0
"""An end that takes longer is shown while it lasts."""
LAUNCHER_S = 1.0
"""For the launcher once its ranks have ended: torchrun then waits for other nodes' ranks, and hears no signal."""
RECORD_S = 5.0
"""As above, where the records of the ranks' ends are not written yet."""
TORCHRUN_S = 28.0
"""If a rank fails, torchrun sends SIGTERM to the node's others, and kills their watchers 30 s later."""
KILLED_S = 10.0
"""For processes that were killed to be gone."""
COMMAND_CHARS = 200
PYTHON_OR_SHELL = re.compile(r"(pypy|python)[\d.]*$|(ba|da|k|z|)sh$")
MODULE, CODE = re.compile("-[bBdEhiIOPqsSuvx]*m"), re.compile("-[a-zA-Z]*c")
TAKE_A_WORD = re.compile("-[a-zA-Z]*[oWX]$|--(rcfile|init-file|check-hash-based-pycs)$")
"""Options of these that the next word belongs to."""
ORDERED = frozenset({-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
"""Exit statuses of ranks that a signal ended which asks for an end."""


class Ending:
    """The end of one node's launcher and its ranks."""

    def __init__(self, run_dir: Path, launcher: "subprocess.Popen[bytes]", grace_s: float) -> None:
        self._run_dir = run_dir
        self._launcher = launcher
        self._grace_s = grace_s
        self._has_ranks = (run_dir / RANKS).is_dir()
        """False: the launcher keeps daemons."""
        self._signal: Optional[signal.Signals] = None
        """The signal that was sent to the launcher from here."""
        self._began: Optional[float] = None
        """Monotonic time at which the grace began."""
        self._ranks_ended: Optional[float] = None
        self._signalled: Set[int] = set()
        """Processes of ranks that ran when the signal was sent, or that had one of their own later."""
        self._records: Dict[str, Dict[str, Any]] = {}
        """File name → a rank's record, as it was last read."""
        self._killed: Set[int] = set()
        self._commands: Set[str] = set()
        """The ranks' command lines, which processes forked from them share."""
        self._left: Dict[int, Dict[str, Any]] = {}
        """Pid → a process that a rank left behind."""
        self._written: Dict[str, Any] = {}

    def watch(self) -> int:
        """Wait for the launcher, and kill its ranks the grace after one has failed. Returns its exit status."""
        changed = -1
        while self._launcher.poll() is None:
            last, changed = changed, _changed(self._run_dir / RANKS)
            if changed != last:
                records = self._read_records()
                self._commands.update(
                    " ".join(words_of(record["pid"])) for record in records if _runs(record)
                )
                ends = [
                    record["ended_at"]
                    for record in records
                    if record.get("exit_code") and "ended_at" in record
                ]
                if ends and self._began is None:
                    self._began = time.monotonic() - max(0.0, time.time() - min(ends))
            if self._began is not None:
                self._step()
            process.wait_for_end([self._launcher.pid], WATCH_S if self._began is None else LOOK_S)
        return self._launcher.returncode

    def stop(self, number: signal.Signals) -> int:
        """Send the launcher a signal, which it passes on to its ranks. Returns its exit status.

        If a rank has failed, torchrun has already sent SIGTERM: a second signal could end a rank that saves.
        """
        if self._began is None:
            ranks = self._read_records()
            # A launcher that is not up yet may lose SIGINT, which is for ranks.
            self._began, self._signal = time.monotonic(), number if ranks else signal.SIGTERM
            self._signalled.update(record["pid"] for record in ranks)
            process.signal_group(self._launcher.pid, self._signal)
        idle_since: Optional[float] = None
        while self._launcher.poll() is None:
            active, now = self._step(), time.monotonic()
            idle_since = None if active and not self._killed else idle_since or now
            if idle_since is not None and now - idle_since > self._launcher_s():
                process.signal_group(self._launcher.pid, signal.SIGKILL)
            process.wait_for_end([self._launcher.pid], LOOK_S)
        return self._launcher.returncode

    def finish(self, *, wait: bool) -> None:
        """Give the ranks and other processes that outlived the launcher the rest of the grace, then end them.

        Without `wait`, and after a crash, they get no time: many of a rank's helpers wait for it forever.
        """
        records = self._read_records()
        codes = [record.get("exit_code") for record in records if "ended_at" in record]
        crashed = any(code is None or (code < 0 and code not in ORDERED) for code in codes)
        now = time.monotonic()
        torchrun_pending = self._signal is None and (self._began is None or now - self._began < TORCHRUN_S)
        if self._began is None:
            self._began = now
        # If torchrun killed a rank's watcher, the rank got no signal.
        wait = wait and self._has_ranks and not crashed and not (torchrun_pending and self._active())
        while self._step(left=True) and wait and self._seconds_left() > 0:
            time.sleep(LOOK_S)
        for left in self._left.values():  # before the kill, which ends those in a rank's group, too
            left["killed"] = process.alive(left["pid"], left["birth"])
        self._kill_ranks()
        for left in self._left.values():
            forked = left["line"] in self._commands or "multiprocessing" in left["line"]
            left["told"] = left["told"] or (left["killed"] and not (crashed and forked))
        process.kill_descendants(deadline_s=KILLED_S)
        with contextlib.suppress(OSError):
            os.unlink(str(self._run_dir / ENDING))  # a later command would take it for the present

    def document(self) -> Optional[Dict[str, Any]]:
        """Return the ending for `exit.json`. `None`: the ranks ended without signals, and left no processes."""
        left = [self._shown(pid) for pid, process_left in self._left.items() if process_left["told"]]
        if not self._has_ranks or (self._signal is None and not self._killed and not left):
            return None
        return dict(self._state(), killed=sorted(self._killed), left=left)

    def _shown(self, pid: int) -> Dict[str, Any]:
        """Return what records keep of a process that a rank left behind: not its arguments."""
        return {key: self._left[pid][key] for key in ("pid", "command", "killed")}

    def _state(self) -> Dict[str, Any]:
        ended, began = self._ranks_ended, self._began
        return {
            "signal": None if self._signal is None else self._signal.name,
            "grace_s": self._grace_s,
            "seconds": None if ended is None or began is None else round(max(0.0, ended - began), 1),
        }

    def _launcher_s(self) -> float:
        """Return how long the launcher may live on without ranks."""
        if not self._has_ranks:
            return self._grace_s
        records = self._read_records()
        return LAUNCHER_S if records and all("ended_at" in record for record in records) else RECORD_S

    def _step(self, *, left: bool = False) -> bool:
        """Look once: kill ranks whose time is over, and tell which ranks and processes run. Returns whether any does.

        `left`: also look for orphans of the launcher, once that has ended.
        """
        active = self._active()
        if active:
            self._ranks_ended = None
        elif self._ranks_ended is None:
            self._ranks_ended = time.monotonic()
        if self._signal is not None:
            for record in self._read_records():
                if record["pid"] not in self._signalled and _runs(record):
                    self._signalled.add(record["pid"])
                    process.signal_group(record["group"], signal.SIGTERM)
        pids = self._left_behind() if left else []
        if active and self._seconds_left() <= 0:
            self._kill_ranks()
        elif active or pids:
            self._tell(active, pids)
        return bool(active or pids)

    def _seconds_left(self) -> float:
        """Return the rest of the grace, which an order to stop may have set anew."""
        assert self._began is not None
        self._grace_s = grace_of(self._run_dir, {"grace_s": self._grace_s})
        return self._began + self._grace_s - time.monotonic()

    def _tell(self, active: List[int], pids: List[int]) -> None:
        """Write down the ranks and processes that run, once the end takes longer than a moment."""
        since = self._began if active or self._ranks_ended is None else self._ranks_ended
        if not self._has_ranks or since is None or time.monotonic() - since < MOMENT_S:
            return
        for pid in pids:
            self._left[pid]["told"] = True
        document = dict(self._state(), seconds=None, active=active, left=list(map(self._shown, pids)))
        if document != self._written:
            self._written = document
            with contextlib.suppress(OSError):  # a full disk
                write_json(self._run_dir / ENDING, document)

    def _active(self) -> List[int]:
        """Return the ranks that run."""
        return sorted(record["rank"] for record in self._read_records() if _runs(record))

    def _read_records(self) -> List[Dict[str, Any]]:
        """Return the records of the ranks that have started."""
        self._records = read_records(self._run_dir, self._records)
        return list(self._records.values())

    def _kill_ranks(self) -> None:
        self._killed.update(self._active())
        kill_ranks(self._read_records())

    def _left_behind(self) -> List[int]:
        """Reap orphans of the launcher that have ended; return the pids of the others that are no ranks."""
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                self._record_end(pid, status)
                pid, status = os.waitpid(-1, os.WNOHANG)
        ranks = {record["pid"] for record in self._read_records() if _runs(record)}
        pids = [pid for pid in process.children(os.getpid()) if pid not in ranks]
        for pid in pids:
            born = process.birth(pid)
            if born is not None and pid not in self._left:
                words = words_of(pid)
                shown = {"pid": pid, "command": command_of(words), "killed": False}
                self._left[pid] = dict(shown, line=" ".join(words), birth=born, told=False)
        return [pid for pid in pids if pid in self._left]

    def _record_end(self, pid: int, status: int) -> None:
        """Write down the end of a rank that outlived its watcher, which torchrun had killed."""
        for record in self._read_records():
            if record["pid"] == pid and "ended_at" not in record:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                path = self._run_dir / RANK_RECORD.format(record["rank"])
                with contextlib.suppress(OSError):  # a full disk
                    write_json(path, dict(record, ended_at=time.time(), exit_code=code))


def read_records(run_dir: Path, last: Mapping[str, Dict[str, Any]] = MappingProxyType({})) -> Dict[str, Any]:
    """Return the records of the node's ranks that have started, by file name.

    `last`: records read before, which stay where the disk fails for a while, as a network's may.
    """
    records = dict(last)
    with contextlib.suppress(OSError):
        for path in sorted((run_dir / RANKS).glob("rank-*.json")):
            with contextlib.suppress(OSError):
                record = read_json(path)
                records.update({path.name: record} if "pid" in record else {})
    return records


def grace_of(run_dir: Path, launched: Dict[str, Any]) -> float:
    """Return the grace of a run. `launched`: what its supervisor wrote down as it began."""
    order: Dict[str, Any] = {}
    with contextlib.suppress(OSError):
        order = read_json(run_dir / STOP_GRACE)
    return float(order.get("grace_s", launched.get("grace_s", GRACE_S)))


def kill_ranks(records: Iterable[Dict[str, Any]]) -> None:
    """SIGKILL the process groups of a run's ranks, as their records name them.

    A group's id is not given to another process while any of the group lives; where its leader is not the one
    that was recorded, the whole group is gone and the id is somebody else's.
    """
    for record in records:
        if "group" in record and process.birth(record["group"]) in (None, record["birth"]):
            process.signal_group(record["group"], signal.SIGKILL)


def words_of(pid: int) -> List[str]:
    """Return the words of a process's command line, or its name if that is empty."""
    try:
        words = Path("/proc/{}/cmdline".format(pid)).read_bytes().split(b"\0")
    except OSError:
        words = []
    return [word.decode(errors="replace") for word in words if word] or [process.name(pid) or "a process"]


def command_of(words: List[str]) -> str:
    """Return a program's name, and the script or module that Python or a shell runs.

    Without other arguments: these may hold secrets.
    """
    program, *options = words
    # Of a process that shows a title, the first word is the whole title.
    shown, rest = os.path.basename((program.split() or [program])[0]), iter(options)
    for word in rest if PYTHON_OR_SHELL.match(shown) else ():
        if word.startswith(("-X", "-W")) and len(word) > 2:
            continue  # an option with its value
        if TAKE_A_WORD.match(word):
            next(rest, None)
        elif MODULE.match(word) and not shown.endswith("sh"):
            shown += " -m " + (word.partition("m")[2] or next(rest, ""))
            break
        elif CODE.match(word):
            break
        elif not word.startswith("-"):
            shown += " " + word
            break
    return shown[:COMMAND_CHARS]


def _runs(record: Dict[str, Any]) -> bool:
    """Return whether a rank's own process lives, which leads its group."""
    born = None if "ended_at" in record else record.get("birth")
    return born is not None and process.alive(record["group"], born)


def _changed(folder: Path) -> int:
    """Return when a folder's list of files last changed. 0: it does not exist."""
    try:
        return os.stat(str(folder)).st_mtime_ns
    except OSError:
        return 0
