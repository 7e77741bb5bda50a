"""A run under way: every node followed at once, the first failure stops the gang, a lost node is named.

The nodes' files are the truth; connections come and go. Whoever attaches to a run later (`logs -f`,
`results`, `stop`) does the same as the command that launched it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Lock, Thread
from typing import Any

from inventories.machine import Machine
from inventories.run import NodeRecord, RankRecord, Run, RunNode
from inventories.store import RunFolder
from remote.connection import connect, reconnect
from remote.errors import BadAnswer, ConnectionLost, RemoteError
from remote.fanout import fan_out
from remote.observer import Lines, Observer
from remote.replica import MAX_ARTIFACT_BYTES, Replica, save_node_record
from remote.session import Node

SILENCE_S = 15.0
"""The agent sends something at least every 5 s."""
RECONNECT_S = 25.0
"""Silence and reconnecting together stay under a minute."""
STOP_DEADLINE_S = 25.0
OWN_END_S = 15.0
"""A node whose rank failed is given this long to end by itself, so that the launcher can finish its report."""


@dataclass(frozen=True, kw_only=True)
class _Event:
    kind: str
    """started, rank, ended, lost, done"""
    node: str
    rank: RankRecord | None = None
    record: NodeRecord | None = None
    error: Exception | None = None


class Watch:
    """Follows one run on all its nodes."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        machines: Mapping[str, Machine],
        known_hosts: Path,
        observer: Observer,
        *,
        nodes: Mapping[str, Node] | None = None,
    ) -> None:
        self._run = run
        self._folder = folder
        self._machines = machines
        self._known_hosts = known_hosts
        self._observer = observer
        self._nodes = dict(nodes or {})
        self._parts = {part.name: part for part in run.nodes}
        self._replicas = {part.name: Replica(folder, part) for part in run.nodes}
        self._events: Queue[_Event] = Queue()
        self._failing: dict[str, float] = {}
        """Nodes with a failed rank → when that was seen (monotonic)."""
        self._stopping: set[str] = set()
        self._open = set(self._parts)
        """Nodes that still have something to say."""
        self._on_started: Callable[[], None] | None = None
        self._locks = {name: Lock() for name in self._parts}
        self.records: dict[str, NodeRecord] = {}
        self.started_s: dict[str, float] = {}
        """Nodes whose launcher is under way → monotonic time of it."""
        self.ended_s: float | None = None
        """Monotonic time at which the last node's launcher had ended."""

    def go(
        self,
        *,
        launches: Mapping[str, dict[str, Any]] | None = None,
        wait: bool = True,
        on_started: Callable[[], None] | None = None,
    ) -> None:
        """Follow all nodes until the run is over (`wait`), or bring what there is now.

        With `launches`, each node's launcher is started first. On an interrupt the run goes on, and so may
        this call: `stop()` first, then `go_on()`.
        """
        for name in self._parts:
            launch = (launches or {}).get(name)
            Thread(target=self._follow, args=(name, launch, wait), daemon=True, name=f"follow {name}").start()
        self._on_started = on_started
        self.go_on()

    def go_on(self) -> None:
        """Go on after an interrupt, until every node is done. Raises what broke in a follower's thread."""
        while self._open:
            try:
                event = self._events.get(timeout=0.5)
            except Empty:
                self._stop_overdue()
                continue
            self._handle(event)
        self.ended_s = self.ended_s or time.monotonic()

    def _handle(self, event: _Event) -> None:
        if event.kind == "crashed" and event.error is not None:
            raise event.error
        if event.kind == "started":
            self.started_s[event.node] = time.monotonic()
            self._observer.node(event.node, "ranks are starting")
            if len(self.started_s) == len(self._parts) and self._on_started:
                self._on_started()
        elif event.kind == "rank" and event.rank is not None:
            if event.rank.exit_code not in (None, 0):
                self._failing.setdefault(event.node, time.monotonic())
                self._stop_others(event.node)
        elif event.kind in ("ended", "lost") and event.record is not None:
            self.records[event.node] = event.record
            save_node_record(self._folder, event.record)
            if len(self.records) == len(self._parts):
                self.ended_s = time.monotonic()
            failed = event.record.exit_code != 0
            self._observer.node(event.node, event.record.failure or ("failed" if failed else "done"))
            if failed:
                self._stop_others(event.node)
        if event.kind in ("done", "lost"):
            self._open.discard(event.node)
            if event.error is not None and event.record is None:
                self._observer.note(str(event.error))

    def stop(self) -> None:
        """Ask every node to end its ranks; returns at once, the nodes' ends arrive as events."""
        for name in self._parts:
            self._stop(name)

    def _stop_others(self, failed: str) -> None:
        for name in self._parts:
            if name != failed:
                self._stop(name)

    def _stop_overdue(self) -> None:
        for name, since in self._failing.items():
            if name not in self.records and time.monotonic() - since > OWN_END_S:
                self._stop(name)

    def _stop(self, name: str) -> None:
        if name in self._stopping or name in self.records:
            return
        self._stopping.add(name)
        self._observer.node(name, "stopping")
        Thread(target=self._ask_to_stop, args=(name,), daemon=True, name=f"stop {name}").start()

    def _ask_to_stop(self, name: str) -> None:
        try:
            stop_on_node(self._node(name), self._parts[name])
        except RemoteError as error:
            # The follower of this node meets the same trouble and reports the node as lost.
            self._observer.note(f"{name} could not be told to stop: {error}")

    def _node(self, name: str) -> Node:
        with self._locks[name]:
            if name not in self._nodes:
                self._nodes[name] = connect(self._machines[name], self._known_hosts)
            return self._nodes[name]

    def _follow(self, name: str, launch: dict[str, Any] | None, wait: bool) -> None:
        """A node's thread: follow it, reconnecting when the link breaks, until it is done or lost."""
        try:
            while True:
                try:
                    self._follow_once(name, launch if name not in self.started_s else None, wait)
                    return
                except ConnectionLost as error:
                    self._observer.node(name, "connection lost, reconnecting")
                    self._reconnect(name, error)
        except (KeyError, TypeError, ValueError) as error:
            failure = f"the node sent something that can't be understood: {error!r}"
            record = NodeRecord(node=name, launcher=self._run.mode, failure=failure)
            self._events.put(_Event(kind="lost", node=name, record=record))
        except RemoteError as error:
            if name in self.records:
                self._events.put(_Event(kind="done", node=name, error=error))
                return
            lost = NodeRecord(node=name, launcher=self._run.mode, failure=str(error))
            self._events.put(_Event(kind="lost", node=name, record=lost, error=error))
        except Exception as error:  # noqa: BLE001 - raised again by `go_on`, in the caller's thread
            self._events.put(_Event(kind="crashed", node=name, error=error))

    def _reconnect(self, name: str, why: ConnectionLost) -> None:
        with self._locks[name]:
            broken = self._nodes.pop(name, None)
            if broken is not None:
                broken.close()
            try:
                self._nodes[name] = reconnect(self._machines[name], self._known_hosts, deadline_s=RECONNECT_S)
            except RemoteError as error:
                raise ConnectionLost(
                    f"the node was lost ({why}) and could not be reached again within {RECONNECT_S:.0f} s: {error}"
                ) from error

    def _follow_once(self, name: str, launch: dict[str, Any] | None, wait: bool) -> None:
        replica = self._replicas[name]
        request = {
            "run_dir": self._parts[name].run_dir,
            "offsets": replica.offsets(),
            "wait": wait,
            "max_artifact_bytes": MAX_ARTIFACT_BYTES,
            "launch": launch,
        }
        lines = Lines(self._observer, name)
        done = False
        with self._node(name).converse("follow", request, timeout_s=SILENCE_S) as talk:
            for header, body in talk.frames():
                kind = header.get("t")
                if kind == "started":
                    self._events.put(_Event(kind="started", node=name))
                elif kind == "file":
                    replica.append(header["path"], int(header["offset"]), body)
                    lines.feed(header["path"], body)
                elif kind == "record":
                    self._events.put(
                        _Event(kind="rank", node=name, rank=replica.record(header["path"], body))
                    )
                elif kind == "end":
                    lines.flush()
                    self._end(name, header["state"])
                elif kind == "chunk":
                    replica.intake.chunk(header["path"], int(header["offset"]), body)
                elif kind == "complete":
                    size, digest = int(header["bytes"]), str(header["sha256"])
                    replica.intake.complete(header["path"], size, digest, int(header["mode"]))
                elif kind == "skipped":
                    self._observer.note(f"{name}: {header['path']} was not brought back: {header['reason']}.")
                elif kind == "done":
                    done = True
                elif kind != "beat":
                    raise BadAnswer(f"{name}: sent {kind!r}, which is not part of a run.")
        replica.intake.discard()
        for path, why in replica.intake.refused.items():
            self._observer.note(f"{name}: the file {path!r} was refused: {why}.")
        if not done:
            raise ConnectionLost(f"{name}: the connection ended in the middle of the run.")
        self._events.put(_Event(kind="done", node=name))

    def _end(self, name: str, state: Mapping[str, Any]) -> None:
        if state["running"]:
            return
        record = NodeRecord(
            node=name,
            launcher=self._run.mode,
            exit_code=state.get("exit_code"),
            ended_at=state.get("ended_at"),
            stopped=bool(state.get("stopped")),
            failure=state.get("failure"),
        )
        self._events.put(_Event(kind="ended", node=name, record=record))


def stop_on_node(node: Node, part: RunNode) -> dict[str, Any]:
    """End a run on one node and wait for it; idempotent. Returns the node's final state."""
    with node.converse(
        "stop", {"run_dir": part.run_dir, "deadline_s": STOP_DEADLINE_S}, timeout_s=STOP_DEADLINE_S + 15
    ) as talk:
        answers = [header for header, _ in talk.frames()]
    state: dict[str, Any] = answers[0]["state"]
    return state


def stop_everywhere(
    run: Run, machines: Mapping[str, Machine], known_hosts: Path
) -> dict[str, RemoteError | None]:
    """End a run on all its nodes at once; every node's error, or None."""

    def one(part: RunNode) -> bool:
        node = connect(machines[part.name], known_hosts)
        try:
            stop_on_node(node, part)
        finally:
            node.close()
        return True

    outcomes = fan_out(one, {part.name: part for part in run.nodes if part.name in machines})
    return {outcome.node: outcome.error for outcome in outcomes}
