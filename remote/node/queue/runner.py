"""Runs the entries of this node's queue on nodes that are free, in a process that outlives connections.

The entry's file says where it runs before its ranks start, and the run's folder is the claim: so a runner that is
killed at any moment, and started again, starts no run twice and skips none.
"""

import contextlib
import fcntl
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from remote.node import run_state
from remote.node.queue import crontab, door, lasting, part, schedule, spool
from remote.node.queue.active_run import ActiveRun, outcome_of
from remote.node.queue.schedule import Entry
from remote.node.queue.spool import Spool
from remote.shared.files import read_json

POLL_S = 0.5
SETTLED_S = 1.0
"""A folder that changed later than this may change again without another time."""
FAREWELL_S = 20.0
"""Time for other nodes to learn that the last run has ended, and to remove their parts."""


def begin(node: str) -> bool:
    """Have a process that runs the node's queue, if it has an entry or a notice. Returns whether it was started."""
    queue = Spool(node)
    if not spool.files_in(queue.folder) and not queue.notify():
        return False
    return lasting.begin(queue.folder / ".runner", lambda lock: Runner(queue, lock).work())


class Runner:
    """Starts the entries, and follows their runs."""

    def __init__(self, queue: Spool, lock: int) -> None:
        """`lock`: the descriptor of the lock that says that a runner lives."""
        self._queue = queue
        self._lock = lock
        self._node = queue.folder.name
        self._peers = door.Peers(queue.ended_runs)
        self._entries: List[Entry] = []
        self._read_at: Optional[int] = None
        self._active: Dict[str, ActiveRun] = {}
        self._stranded_at = time.monotonic()
        """When an entry last failed as its nodes do not answer; at first: the beginning."""
        self._empty_at: Optional[float] = None
        self._opened: Dict[str, Any] = {}
        """Address, port and key of the open door. Empty: it is closed."""

    def work(self) -> None:
        """Run the entries until none waits. The lock is released before anybody can add another one."""
        with self._queue.locked():
            self._queue.remove_temporaries()
        with contextlib.ExitStack() as door_open:
            while True:
                with self._queue.locked():
                    self._take()
                    if self._entries:
                        self._empty_at = None
                    elif self._has_parted():
                        self._send_end()
                        crontab.remove(self._node)
                        fcntl.flock(self._lock, fcntl.LOCK_UN)
                        return
                if self._others(self._entries):
                    self._open_door(door_open)
                self._follow()
                time.sleep(POLL_S)

    def _open_door(self, opened: contextlib.ExitStack) -> None:
        """Listen at the door's present address. Without it, entries for this node alone start."""
        settings = read_json(self._queue.folder / door.SETTINGS)
        if not settings or settings == self._opened:
            return
        opened.close()
        self._opened = {}
        try:
            opened.enter_context(door.listening(settings, self._peers))
        except OSError as error:
            self._peers.closed = "its port {}:{} can't be opened: {}".format(
                settings["address"], settings["port"], error.strerror
            )
        else:
            self._opened, self._peers.closed = settings, None

    def _take(self) -> None:
        """Read the entries if they may have changed; mark the ones as running whose nodes are free.

        Entries that a killed runner left are taken up.
        """
        changed_at = self._queue.changed_at()
        if changed_at != self._read_at or time.time() - changed_at / 1e9 < SETTLED_S:
            self._entries, self._read_at = self._queue.entries(), changed_at
        self._peers.expect(self._others(self._entries))
        for entry in self._entries:
            if entry["state"] == spool.RUNNING and entry["run"] not in self._active:
                self._activate(entry)
        waiting = [] if self._queue.paused else schedule.can_follow(self._entries)
        if any(entry["after"] for entry in waiting):
            active = run_state.active_runs()  # `train` may have started the run
            waiting = [entry for entry in waiting if entry["after"] not in active]
        if not waiting:
            return
        # A free node has no active run, of the queue or of anybody else, and room on its disk.
        used = {node for run in self._active.values() for node in run.nodes}
        blocked = self._node in used or part.disk_is_full() or run_state.active_runs()
        free = (self._peers.idle() - used) | (set() if blocked else {self._node})
        lost = self._peers.silent(self._others(waiting), door.GATHER_S)
        starting, stranded = schedule.assign(waiting, free, lost) if free or lost else ([], [])
        for entry, index in starting:
            nodes = entry["places"][index]["nodes"]
            entry.update(state=spool.RUNNING, started_at=time.time(), place=index, nodes=nodes)
            self._queue.save(entry)
            self._activate(entry)
        if stranded and time.monotonic() - self._stranded_at > door.GATHER_S:
            # One at a time: the node may come back for the others.
            error = self._peers.silence(self._others(stranded[:1]) & lost, door.GATHER_S)
            part.record_failure(stranded[0], self._node, error)
            self._queue.close(stranded[0], spool.FAILED, error=error)
            self._stranded_at = time.monotonic()

    def _activate(self, entry: Entry) -> None:
        self._active[entry["run"]] = ActiveRun(entry, self._node, self._peers)

    def _others(self, entries: Sequence[Entry]) -> Set[str]:
        """Return the other nodes on which these entries may run."""
        return {node for entry in entries for place in entry["places"] for node in place["nodes"]} - {
            self._node
        }

    def _follow(self) -> None:
        """Carry the active runs on, and take entries out of the queue whose run has ended."""
        for active in list(self._active.values()):
            ends = active.follow()
            if ends is not None:
                outcome = outcome_of(ends)
                error = active.error or outcome["error"]
                with self._queue.locked():
                    self._queue.close(active.entry, **dict(outcome, error=error))
                del self._active[active.entry["run"]]

    def _has_parted(self) -> bool:
        """Return whether the other nodes have removed their parts, or had the time for it."""
        self._empty_at = self._empty_at or time.monotonic()
        return not self._peers.with_parts() or time.monotonic() - self._empty_at > FAREWELL_S

    def _send_end(self) -> None:
        """Send a notice that the queue is empty, if a run had targets, and its own notice does not say all."""
        notify, ended = self._queue.notify(), self._queue.ended_since_empty()
        if notify and ended and (len(ended) > 1 or notify["run"].get("failures_only")):
            from remote.node.notify import queue_end  # its imports take long

            queue_end.send(notify, ended)
        self._queue.note_empty()
