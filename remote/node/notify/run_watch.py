"""Watches a run from its first node, and sends its notices: a process of its own, which outlives the run."""

import contextlib
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from remote.node import process
from remote.node.notify import other_ends, run_notices, spool
from remote.node.notify.machine_end import MachineEnd
from remote.node.run_state import state
from remote.shared.constants import HANG_REPORT, NOTIFIED, RENDEZVOUS_PORTS
from remote.shared.files import read_json
from remote.shared.notify.delivery import PAUSES_S
from remote.shared.notify.message import event_id

TICK_S = 5.0
PEERS_S = 20.0
"""The pause between two looks at the other nodes."""
LOST_S = 60.0
"""A node that answered before and is silent for this time is lost."""
CONNECT_S = 4.0
AT_ONCE = 32
UNREADABLE = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""Errors for files that a script has damaged: its run is watched, and its end is sent, without them."""
FAILURES_ONLY = b"failures only"
"""Content of a claim whose watch does not send that the run succeeded."""
FIRST_ATTEMPT_S = 5.0
"""Time for which whoever follows a run waits for the first attempts to send its end."""


def begin(run_dir: Path, notify: Dict[str, Any]) -> None:
    """Watch the run from a process of its own, which has the targets in its memory only. Returns at once.

    `notify`: `targets`, `settings`, and the facts of the `run` and its `machine`; `ends` if others report theirs.
    On these: `ends`, and the `node` in `run`. A second call does nothing. A run is worth more than its notices:
    without them if no process can be started.
    """
    supervisor = read_json(run_dir / "runner.json")
    if not supervisor and not (run_dir / "exit.json").exists():
        return
    claim = str(run_dir / NOTIFIED)
    try:
        handle = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        if notify["run"].get("failures_only"):
            os.write(handle, FAILURES_ONLY)
        os.close(handle)
    except OSError:
        return
    try:
        if "targets" in notify:
            process.detach(lambda: RunWatch(run_dir, notify).keep_on(supervisor))
        else:
            node, way = notify["run"]["node"], notify["ends"]
            process.detach(lambda: other_ends.report(run_dir, node, way, supervisor))
    except OSError:
        os.unlink(claim)


def undelivered(run_dir: Path) -> List[Dict[str, Any]]:
    """Return the notices of an ended run that are not delivered, once each target had its first attempt."""
    run = run_dir.parent.name
    end = state(run_dir)
    is_silent = run_notices.succeeded(end) and (run_dir / NOTIFIED).read_bytes() == FAILURES_ONLY
    if not run_notices.continues(end) and not is_silent:
        spool.wait_for_first_attempts(event_id(run_notices.END.format(run)), FIRST_ATTEMPT_S)
    return spool.undelivered(run)


class RunWatch:
    """Looks at a run's files and at its other nodes."""

    def __init__(self, run_dir: Path, notify: Mapping[str, Any]) -> None:
        self._run_dir = run_dir
        self._run = notify["run"]
        self._outbox = spool.Outbox(notify["targets"], notify["settings"], notify["run"]["run"])
        self._hangs = 0
        self._hung = False
        self._peers = Peers(self._run["peers"], answers=is_alive)
        self._other_ends = other_ends.OtherEnds(self._run["followers"], notify.get("ends"))
        self._end = MachineEnd(notify["machine"])

    def keep_on(self, supervisor: Mapping[str, Any]) -> None:
        """Watch until the supervisor has ended, and send how the run ended. `supervisor`: empty if it did not start.

        Also after SIGTERM: a run on a machine that goes down may save for minutes before it ends.
        """
        pauses_s: Tuple[float, ...] = PAUSES_S

        def terminated(_number: int, _frame: object) -> None:
            nonlocal pauses_s
            pauses_s = ()  # a machine that goes down has no time for further attempts

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, terminated)
        while supervisor and process.lives_on(supervisor["pid"], supervisor["birth"], TICK_S):
            with contextlib.suppress(*UNREADABLE):
                self.poll(time.time())
        with contextlib.suppress(*UNREADABLE):
            limit = time.monotonic() + self._other_ends.awaited_s(state(self._run_dir))
            while pauses_s and self._other_ends.missing() and time.monotonic() < limit:
                self._other_ends.wait(min(TICK_S, limit - time.monotonic()))
                self.poll(time.time())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        now = time.time()
        try:
            ends = dict(self._other_ends.reports)  # another one may arrive now
            notice = run_notices.ended(self._run_dir, self._run, state(self._run_dir), now, ends)
        except UNREADABLE:
            notice = run_notices.ended_somehow(self._run, now)
        if notice is not None:
            self._outbox.send(notice, pauses_s)
        self._outbox.join()

    def poll(self, now: float) -> None:
        """Send a notice of each new event."""
        report = read_json(self._run_dir / HANG_REPORT)
        hangs_newly, self._hung = bool(report) and not self._hung, bool(report)
        if hangs_newly:
            self._hangs += 1
            self._outbox.send_aside(run_notices.hung(self._run, report, self._hangs, now))
        for name, silent_s in self._peers.newly_lost():
            self._outbox.send_aside(run_notices.node_lost(self._run, name, silent_s, now))
        for notice in self._end.poll(now):
            self._outbox.send_aside(notice)


class Peers:
    """The run's other nodes, to which the first one connects now and then.

    Only a node that has answered before can be lost: a firewall may drop what comes from here.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        *,
        answers: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`addresses`: name → address. `answers`: whether an address answers now."""
        self._addresses = addresses
        self._answers = answers
        self._clock = clock
        self._answered: Dict[str, float] = {}
        """Name → time of the last answer."""
        self._lost: Set[str] = set()
        self._looked: Optional[float] = None

    def newly_lost(self) -> List[Tuple[str, float]]:
        """Return the nodes that are lost since the last call, each with its time without an answer."""
        now = self._clock()
        if not self._addresses or (self._looked is not None and now - self._looked < PEERS_S):
            return []
        self._looked = now
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = dict(zip(self._addresses, pool.map(self._answers, self._addresses.values())))
        for name in [name for name, answers_now in answers.items() if answers_now]:
            self._answered[name] = now
            self._lost.discard(name)
        silent = {name: now - at for name, at in self._answered.items() if name not in self._lost}
        lost = [(name, silent_s) for name, silent_s in silent.items() if silent_s >= LOST_S]
        self._lost.update(name for name, _ in lost)
        return lost


def is_alive(address: str, port: int = RENDEZVOUS_PORTS[0]) -> bool:
    """Return whether a machine answers: it accepts a connection, or refuses it."""
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
