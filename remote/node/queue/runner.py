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
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional

from remote.node import end_reasons, process, run_state
from remote.node.queue import crontab, door, lasting, spool
from remote.node.queue.door import Gang
from remote.node.queue.spool import Entry, Spool
from remote.node.runs import start, supervisor
from remote.shared.constants import RUN_ID_VARIABLE

POLL_S = 0.5
CUT_OFF = "it was cut off as it started"
BEGIN_S = 10.0
"""A supervisor writes its first file within this time."""


def begin(node: str) -> None:
    """Have a process that runs the node's queue, if it has an entry. Returns at once."""
    queue = Spool(node)
    if any(queue.folder.glob("*.json")):
        lasting.begin(queue.folder / ".runner", lambda lock: Runner(queue, lock).work())


class Runner:
    """Takes the entries in their order."""

    def __init__(self, queue: Spool, lock: int) -> None:
        """`lock`: the descriptor of the lock that says that a runner lives."""
        self._queue = queue
        self._lock = lock
        self._notify: Optional[Dict[str, Any]] = None
        """Targets of the last run's notices, for the one that the queue is empty."""

    def work(self) -> None:
        """Run the entries until none waits. The lock is released before anybody can add another one."""
        while True:
            changed_at = self._queue.changed_at()
            with self._queue.locked():
                entries = self._queue.entries()
                if not entries:
                    crontab.remove(self._queue.folder.name)
                    self._send_end()
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                    return
                entry = self._take(entries)
            if entry is not None:
                self._run(entry)
            else:
                self._wait(changed_at)

    def _send_end(self) -> None:
        """Send a notice that the queue is empty, if the last run has targets, and was not alone."""
        ended = self._queue.ended_since_empty()
        if self._notify and len(ended) > 1:
            from remote.node.notify import queue_end  # its imports take long

            queue_end.send(self._notify, ended)

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
        """Start an entry on its nodes, wait for its end, and take it out of the queue."""
        launch = entry["launch"]
        self._notify = launch.get("notify") or self._notify
        run_dir = Path(launch["run_dir"])
        gang = Gang(entry["run"], entry["peers"])
        with door.listening(entry["door"], gang) if entry["peers"] else contextlib.nullcontext():
            error = self._gather(gang, run_dir)
            if error:
                supervisor.record_failed_start(run_dir, launch["argv"][0], error)
            else:
                error = self._start(entry, launch, run_dir)
            ends = [run_state.state(run_dir)] if error else wait_for_end(run_dir, gang)
        supervisor.clean_up(run_dir)
        with self._queue.locked():
            self._queue.close(entry, status_of(ends), exit_code=ends[0].get("exit_code"), error=error)

    def _gather(self, gang: Gang, run_dir: Path) -> Optional[str]:
        """Wait until all other nodes are ready, unless the run has begun. Returns why it can't start."""
        limit = time.monotonic() + door.GATHER_S
        while gang.missing() and not run_dir.exists():
            if time.monotonic() > limit:
                silent = ", ".join(gang.missing())
                return "{} did not answer the first node for {:.0f} s".format(silent, door.GATHER_S)
            time.sleep(POLL_S)
        return None

    def _start(self, entry: Entry, launch: Dict[str, Any], run_dir: Path) -> Optional[str]:
        """Start the ranks, unless they have started before. Returns why they could not start."""
        if run_dir.exists() and not has_begun(run_dir):
            # A killed runner was about to start them. Its ranks must not live when others start.
            for pid in process.with_variable(RUN_ID_VARIABLE, entry["run"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if (run_dir / supervisor.STARTING).exists():  # a second start might do its work twice
                return record_failure(launch, run_dir, CUT_OFF)
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
                return record_failure(launch, run_dir, str(error))
            return None


def record_failure(launch: Dict[str, Any], run_dir: Path, why: str) -> str:
    """Record and notify that a run could not start. Returns why."""
    supervisor.record_failed_start(run_dir, launch["argv"][0], why)
    if launch.get("notify"):
        from remote.node.notify import run_watch  # its imports take long

        run_watch.begin(run_dir, launch["notify"])
    return why


def has_begun(run_dir: Path) -> bool:
    """Return whether the run has a supervisor, has ended, or was stopped; wait if it is about to begin."""
    limit = time.monotonic() + BEGIN_S
    while not any((run_dir / name).exists() for name in ("runner.json", "exit.json", "stop")):
        # The folder's age counts, too: this process may be killed each few seconds.
        if time.monotonic() > limit or time.time() - run_dir.stat().st_mtime > BEGIN_S:
            return False
        time.sleep(POLL_S / 10)
    return True


def wait_for_end(run_dir: Path, gang: Gang) -> List[Dict[str, Any]]:
    """Let the other nodes start, and wait until the run has ended on all. Returns the ends, this node's first.

    A failure on one node, or a lost node, stops the others.
    """
    gang.order("start")
    while True:
        state = run_state.state(run_dir)
        lost, ends = gang.lost(), list(gang.ends().values())
        if lost or any(end.get("exit_code") != 0 for end in [*ends, *([] if state["running"] else [state])]):
            gang.order("stop")
            if state["running"] and not (run_dir / "stop").exists():
                supervisor.tell_to_stop(run_dir, door.PEER_FAILED)
        if not state["running"] and not set(gang.active()) - set(lost):
            return [state, *ends, *({} for _ in lost)]
        if state["running"]:
            process.wait_for_end([state["pid"]], POLL_S)
        else:
            time.sleep(POLL_S)


def status_of(ends: List[Dict[str, Any]]) -> str:
    """Return the state of an entry whose run has ended so on its nodes."""
    if any((end.get("ended") or {}).get("reason") == end_reasons.STOPPED for end in ends):
        return spool.STOPPED
    return spool.SUCCEEDED if all(end.get("exit_code") == 0 for end in ends) else spool.FAILED
