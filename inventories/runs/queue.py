"""Documents on a cluster's queue, which its first node keeps and this computer mirrors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

EntryState = Literal["waiting", "preparing", "running", "succeeded", "failed", "stopped", "removed"]
OPEN_STATES = ("waiting", "preparing", "running")
"""States of an entry that has not ended."""


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """An entry of the queue, an element of `queue ls --json`."""

    entry: str
    """Its number, which no later entry gets."""
    name: str | None
    state: EntryState
    run: str
    """The id that its run has once it has started."""
    after: str | None
    """The run that has to end before. `None`: no such run, or it has ended."""
    priority: int
    """Entries with a higher one come first."""
    script: str
    args: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    nnodes: int = 1
    added_at: str | None = None
    """ISO 8601, UTC."""
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    error: str | None = None
    """Why its ranks could not be started. `None`: they were, or it has not begun."""

    @property
    def ended(self) -> bool:
        """Return whether the entry has left the queue."""
        return self.state not in OPEN_STATES


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The queue of a cluster, the document of `queue ls --json`: ended entries, then the others in their order."""

    entries: tuple[QueueEntry, ...] = ()
    paused: bool = False
    restarts: bool | None = None
    """Whether cron continues it after a restart of its node. `None`: not asked."""
    as_of: str | None = None
    """When the first node reported it; ISO 8601, UTC."""
