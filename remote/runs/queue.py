"""The queue on a cluster's first node: add entries, change their order, and learn how they ended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Literal

from inventories.codec import from_json, to_json
from inventories.runs.queue import Queue, QueueEntry
from inventories.runs.run import Run
from remote.errors import BadAnswer
from remote.sessions.answers import reading
from remote.sessions.limits import Bounds
from remote.sessions.session import Node
from remote.shared import frames

ANSWER_S = 60.0
"""For a node that waits for its disk."""
Action = Literal["move", "remove", "pause", "resume"]
_TIMES = ("added_at", "started_at", "ended_at")


def new_entry(run: Run, launch: Mapping[str, Any], *, priority: int) -> dict[str, Any]:
    """Return an entry as the first node gets it: with the launch of its run."""
    tags = run.options.tags if run.options else {}
    shown = {"run": run.run, "name": run.name, "script": run.script, "args": run.args, "tags": tags}
    return {**shown, "nnodes": run.nnodes, "priority": priority, "launch": {**launch, "record": to_json(run)}}


def add(node: Node, entries: Sequence[Mapping[str, Any]], after: str | None) -> Queue:
    """Add entries, at once; returns these. `after`: a run or entry that they follow. Raises NodeFailed, BadAnswer."""
    return _ask(node, "queue_add", {"entries": entries, "after": after})


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
    for header in _frames(node, command, request):
        if header.get("t") == frames.ENTRY:
            with reading(node.name, "an entry of its queue"):
                entries.append(_entry(header["entry"]))
        elif header.get("t") == frames.DONE:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            return Queue(entries=tuple(entries), paused=header.get("paused") is True, as_of=now)
    raise BadAnswer(f"{node.name}: its queue was not sent to the end.")


def _frames(node: Node, command: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    body = {"node": node.name, **request}
    with node.stream(command, body, timeout_s=ANSWER_S, bounds=Bounds(total_s=ANSWER_S, grows=True)) as talk:
        for header, _ in talk.frames():
            yield header


def _entry(document: Mapping[str, Any]) -> QueueEntry:
    known = {each.name for each in fields(QueueEntry)}
    values = {key: value for key, value in document.items() if key in known}
    values |= {key: _time(values[key]) for key in _TIMES if values.get(key) is not None}
    return from_json(QueueEntry, values, "an entry of the queue")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(float(seconds), UTC).isoformat(timespec="milliseconds")
