"""The queue on a cluster's first node: add entries, change their order, and learn how they ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal

from inventories.codec import from_json, to_json
from inventories.runs.queue import Queue, QueueEntry
from inventories.runs.run import Run
from remote.errors import BadAnswer
from remote.fanout import fan_out, values
from remote.sessions.answers import reading
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.secret_arguments import without_secrets

ANSWER_S = 60.0
"""For a node that waits for its disk."""
Action = Literal["move", "remove", "clear", "pause", "resume"]
_TIMES = ("added_at", "started_at", "ended_at")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Nodes on which a run may start, with its record and its launches there."""

    run: Run
    launches: Mapping[str, Mapping[str, Any]]
    """Node → what its supervisor is given."""

    def part(self, name: str) -> dict[str, Any]:
        """Return the place as a node gets it, with its own launch alone."""
        launch = self.launches.get(name)
        own = None if launch is None else {**launch, "record": to_json(self.run)}
        return {"nodes": [node.name for node in self.run.nodes], "launch": own}


@dataclass(frozen=True, kw_only=True)
class NewEntry:
    """A run that is to be put into the queue."""

    places: Sequence[Place]
    """The nodes that it can take; it gets one place of these."""
    priority: int

    @property
    def run(self) -> Run:
        """Return the run's record, as it is if it starts on the first of the places."""
        return self.places[0].run

    def part(self, name: str) -> dict[str, Any]:
        """Return a node's part of the entry."""
        return {"run": self.run.run, "places": [place.part(name) for place in self.places]}

    def document(self, name: str) -> dict[str, Any]:
        """Return the entry for the first node."""
        run = self.run
        tags = run.options.tags if run.options else {}
        args = without_secrets(run.args)  # people read them in the queue's list and in notices
        shown = {"name": run.name, "script": run.script, "args": args, "tags": tags, "nnodes": run.nnodes}
        notify = self.places[0].launches[run.nodes[0].name].get("notify")
        return {**self.part(name), **shown, "priority": self.priority, "notify": notify}


def add(nodes: Sequence[Node], entries: Sequence[NewEntry], after: str | None, *, restarts: bool) -> Queue:
    """Add entries at once, and return them. The first node comes last: it starts nothing that another one lacks.

    `after`: a run or entry that they follow. `restarts`: cron continues the queue after a restart of a node.
    Raises NodeFailed, BadAnswer.
    """
    first, *followers = nodes
    restarting: Mapping[str, bool | None] = {}
    if followers:
        address = first.machine.private_ip
        door = first.call("queue_door", {"node": first.name, "address": address}).get("door")
        waiting = [entry.run for entry in state_of(first).entries if not entry.ended]
        keep = [*waiting, *(entry.run.run for entry in entries)]

        def send(node: Node) -> bool | None:
            parts = [entry.part(node.name) for entry in entries]
            body = {"entries": parts, "door": door, "keep": keep, "keep_new": True, "restarts": restarts}
            return node.call("queue_follow", {"node": node.name, **body}).get("restarts")

        restarting = values(fan_out(send, {node.name: node for node in followers}))
    documents = [entry.document(first.name) for entry in entries]
    queue = _ask(first, "queue_add", {"entries": documents, "after": after, "restarts": restarts})
    everywhere = {first.name: queue.restarts, **restarting}
    return replace(queue, without_cron=tuple(name for name, has in everywhere.items() if has is False))


def follow(node: Node, runs: Sequence[str], *, keep_new: bool) -> None:
    """Have a node that is not the first follow the queue, which has these runs; it forgets other ones.

    `keep_new`: runs that another computer may be adding now stay.
    """
    body = {"node": node.name, "door": None, "entries": [], "keep": list(runs), "restarts": False}
    node.call("queue_follow", {**body, "keep_new": keep_new})


def state_of(node: Node) -> Queue:
    """Return the queue of the node. Raises BadAnswer."""
    return _ask(node, "queue_list", {})


def change(node: Node, action: Action, entries: Sequence[str] = (), place: str = "") -> Queue:
    """Change the queue and return it. `place`: of a move: `first`, `last`, or the entry to be in front of.

    Raises NodeFailed if an entry does not wait.
    """
    return _ask(node, "queue_change", {"action": action, "entries": list(entries), "place": place})


def _ask(node: Node, command: str, request: Mapping[str, Any]) -> Queue:
    """Send a request and return the entries of the answer."""
    entries: list[QueueEntry] = []
    body = {"node": node.name, **request}
    with node.stream(command, body, timeout_s=ANSWER_S, bounds=Bounds(total_s=ANSWER_S, grows=True)) as talk:
        for header, _ in talk.frames():
            if header.get("t") == frames.ENTRY:
                with reading(node.name, "an entry of its queue"):
                    entries.append(_entry(header["entry"]))
            elif header.get("t") == frames.DONE:
                return Queue(
                    entries=tuple(entries),
                    paused=header.get("paused") is True,
                    as_of=datetime.now(UTC).isoformat(timespec="seconds"),
                    restarts=header.get("restarts"),
                    restarted=header.get("restarted") is True,
                )
    raise BadAnswer(f"{node.name}: its queue was not sent to the end.")


def _entry(document: Mapping[str, Any]) -> QueueEntry:
    known = {each.name for each in fields(QueueEntry)}
    values = {key: value for key, value in document.items() if key in known}
    for key in _TIMES:
        if values.get(key) is not None:
            values[key] = datetime.fromtimestamp(float(values[key]), UTC).isoformat(timespec="milliseconds")
    return from_json(QueueEntry, values, "an entry of the queue")
