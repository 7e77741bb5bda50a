"""Notices that a node could not deliver, as the node keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from remote.sessions.answers import reading
from remote.sessions.session import Node


@dataclass(frozen=True, kw_only=True)
class Undelivered:
    """A notice that did not reach a target."""

    node: str
    target: str
    """Without its secret: `slack:hooks.slack.com/…`."""
    type: str
    """`run.failed`, …"""
    about: str
    """The run or the cluster."""
    at: str
    """Time of the event, ISO 8601, UTC."""
    problem: str
    next_at: str | None
    """Time of the next attempt. `None`: the node gave up."""


def ask(node: Node, about: str | None = None) -> list[Undelivered]:
    """Return the notices that a node could not deliver. `about`: of this run or cluster only. Raises BadAnswer."""
    return parse(node.name, node.call("notices", {"about": about}, timeout_s=30))


def parse(name: str, answer: Mapping[str, Any]) -> list[Undelivered]:
    """Read a node's answer. Raises BadAnswer."""
    with reading(name, "its list of notices"):
        return [
            Undelivered(
                node=name,
                target=str(record["target"]),
                type=str(record["type"]),
                about=str(record["about"]),
                at=_time(record["at"]),
                problem=str(record["detail"]) or "the first attempt has no answer yet",
                next_at=None if record["next_at"] is None else _time(record["next_at"]),
            )
            for record in answer["notices"]
        ]


def sentence(notice: Undelivered) -> str:
    """Return a line on a notice that was not delivered."""
    then = "it is not sent again" if notice.next_at is None else f"the next attempt is at {notice.next_at}"
    return (
        f"{notice.node}: the notification {notice.type} of {notice.about} did not reach {notice.target}: "
        f"{notice.problem}; {then}"
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
