"""Runs the entries of this node's queue, one after the other, in a process that outlives each connection.

The entry's file says that it runs before its ranks start, and the run's folder is the claim: so a runner that is
killed at any moment, and started again, starts no run twice and skips none.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional

from remote.node import process, run_state
from remote.node.queue import spool
from remote.node.queue.spool import Entry, Spool
from remote.node.runs import start, supervisor
from remote.shared.constants import RUN_ID_VARIABLE

POLL_S = 0.5
BEGIN_S = 10.0
"""A supervisor writes its first file within this time."""


def begin(node: str) -> None:
    """Have a process that runs the node's queue, if it has an entry. Returns at once."""
    if any((Spool(node).folder).glob("*.json")):
        process.detach(lambda: keep_running(node))


def keep_running(node: str) -> None:
    """Run the queue until it is empty, in a child process that is started again if it dies.

    Returns at once if another process does that. Child and parent share the lock: one of them is enough to hold it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    queue = Spool(node)
    with queue.locked():
        lock = open(str(spool.path_of_lock(node)), "wb")  # noqa: SIM115 - as long as the process lives
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
    while True:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _write_errors_to(queue.folder / ".log")
                Runner(queue, lock.fileno()).work()
                status = 0
            except Exception:  # noqa: BLE001 - the log has it, and the parent starts another child
                traceback.print_exc()
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1] == 0:
            return
        time.sleep(POLL_S)  # it was killed, or a full disk could not take the queue's state


def _write_errors_to(path: Path) -> None:
    log = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 2)
    os.close(log)


class Runner:
    """Takes the entries in their order."""

    def __init__(self, queue: Spool, lock: int) -> None:
        """`lock`: the descriptor of the lock that says that a runner lives."""
        self._queue = queue
        self._lock = lock

    def work(self) -> None:
        """Run the entries until none waits. The lock is released before anybody can add another one."""
        while True:
            changed_at = self._queue.changed_at()
            with self._queue.locked():
                entries = self._queue.entries()
                if not entries:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                    return
                entry = self._take(entries)
            if entry is not None:
                self._run(entry)
            else:
                self._wait(changed_at)

    def _take(self, entries: List[Entry]) -> Optional[Entry]:
        """Return the entry to run, marked as running: one that a killed runner left, else the next one."""
        running = next((entry for entry in entries if entry["state"] == spool.RUNNING), None)
        if running is not None:
            return running
        if run_state.active_runs() or self._queue.paused:
            return None
        open_names = {name for entry in entries for name in (entry["entry"], entry["run"])}
        entry = spool.next_entry(entries, lambda name: name not in open_names)
        if entry is None:
            return None
        entry = dict(entry, state=spool.RUNNING, started_at=time.time())
        self._queue.save(entry)
        return entry

    def _wait(self, changed_at: int) -> None:
        """Wait until the queue changes, or no run is active any more."""
        while self._queue.changed_at() == changed_at:
            time.sleep(POLL_S)
            if not self._queue.paused and not run_state.active_runs():
                return

    def _run(self, entry: Entry) -> None:
        """Start an entry, wait for its end, and take it out of the queue."""
        launch = entry["launch"]
        run_dir = Path(launch["run_dir"])
        error = self._start(entry, launch, run_dir)
        state = wait_for_end(run_dir)
        supervisor.clean_up(run_dir)
        status = status_of(state)
        with self._queue.locked():
            self._queue.close(entry, status, exit_code=state.get("exit_code"), error=error)

    def _start(self, entry: Entry, launch: Dict[str, Any], run_dir: Path) -> Optional[str]:
        """Start the ranks, unless they have started before. Returns why they could not start."""
        if run_dir.exists() and not has_begun(run_dir):
            # A killed runner was about to start them. No rank of it lives, or a rank would find itself twice.
            for pid in process.with_variable(RUN_ID_VARIABLE, entry["run"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(str(run_dir), ignore_errors=True)
        started_at = datetime.fromtimestamp(entry["started_at"], timezone.utc)
        launch["record"]["started_at"] = started_at.isoformat(timespec="milliseconds")
        if launch.get("notify"):
            launch["notify"]["run"]["started"] = entry["started_at"]
        while True:
            try:
                start.start(launch)
            except OSError as error:
                if set(run_state.active_runs()) - {entry["run"]}:  # `train` started it in between
                    time.sleep(POLL_S)
                    continue
                supervisor.record_failed_start(run_dir, launch["argv"][0], str(error))
                if launch.get("notify"):
                    from remote.node.notify import run_watch  # its imports take long

                    run_watch.begin(run_dir, launch["notify"])
                return str(error)
            return None


def has_begun(run_dir: Path) -> bool:
    """Return whether the run has a supervisor, has ended, or was stopped; wait if it is about to begin."""
    limit = time.monotonic() + BEGIN_S
    while time.monotonic() < limit:
        if any((run_dir / name).exists() for name in ("runner.json", "exit.json", "stop")):
            return True
        time.sleep(POLL_S / 10)
    return False


def wait_for_end(run_dir: Path) -> Dict[str, Any]:
    """Wait until the run has ended here, and return its state."""
    state = run_state.state(run_dir)
    while state["running"]:
        process.wait_for_end([state["pid"]], POLL_S)
        state = run_state.state(run_dir)
    return state


def status_of(state: Dict[str, Any]) -> str:
    """Return the state of an entry whose run has ended."""
    if state.get("stopped"):
        return spool.STOPPED
    return spool.SUCCEEDED if state.get("exit_code") == 0 else spool.FAILED
