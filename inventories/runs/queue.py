"""Documents on a cluster's queue, which its first node keeps and this computer mirrors."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from inventories.runs.run import Run

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
    nodes: tuple[str, ...] = ()
    """The nodes that its run took. Empty: it has not started."""
    ahead: int | None = None
    """How many entries waited in front of it when it was added. `None`: not known, or not about its addition."""
    added_at: str | None = None
    """ISO 8601, UTC."""
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    error: str | None = None
    """Why it failed, other than by its ranks: they could not be started, or a node did not answer."""

    @property
    def ended(self) -> bool:
        """Return whether the entry has left the queue."""
        return self.state not in OPEN_STATES


@dataclass(frozen=True, kw_only=True)
class QueueStatus:
    """A cluster's queue in `status --json`."""

    running: int
    waiting: int
    paused: bool
    restarted: bool
    """Whether its process had ended, and this command started it again."""
    as_of: str | None
    """When the first node reported it; ISO 8601, UTC."""


@dataclass(frozen=True, kw_only=True)
class QueuedRun:
    """The records of a run that this computer queued, one for each place where it may start."""

    records: tuple[Run, ...]

    def on(self, nodes: tuple[str, ...]) -> Run | None:
        """Return the record of the run on these nodes. `None`: it can't run there."""
        return next((run for run in self.records if tuple(node.name for node in run.nodes) == nodes), None)

    def needs(self, names: Collection[str]) -> bool:
        """Return whether each of its places has one of these nodes."""
        return all(any(node.name in names for node in run.nodes) for run in self.records)


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The queue of a cluster, the document of `queue ls --json`: ended entries, then the others in their order."""

    entries: tuple[QueueEntry, ...] = ()
    paused: bool = False
    restarts: bool | None = None
    """Whether cron continues it after a restart of its node. `None`: not asked."""
    without_cron: tuple[str, ...] = ()
    """Nodes that do not continue it after a restart, found when entries were added."""
    restarted: bool = False
    """Whether its process had ended, and this command started it again."""
    as_of: str | None = None
    """When the first node reported it; ISO 8601, UTC."""

    @property
    def summary(self) -> str:
        """Return the numbers of entries by state: `16 succeeded, 4 failed, 0 waiting`."""
        counts = {"waiting": 0, **Counter(entry.state for entry in self.entries)}
        order = ("succeeded", "failed", "stopped", "removed", "running", "waiting")
        return ", ".join(f"{counts[state]} {state}" for state in order if state in counts)

    @property
    def open_entries(self) -> list[QueueEntry]:
        """Return the entries that wait or run."""
        return [entry for entry in self.entries if not entry.ended]

    @property
    def waiting(self) -> list[QueueEntry]:
        """Return the entries that have neither started nor ended."""
        return [entry for entry in self.open_entries if entry.state != "running"]

    def status(self) -> QueueStatus | None:
        """Return the queue in short. `None`: nothing runs or waits in it, and it is not paused."""
        if not self.open_entries and not self.paused:
            return None
        return QueueStatus(
            running=len(self.open_entries) - len(self.waiting),
            waiting=len(self.waiting),
            paused=self.paused,
            restarted=self.restarted,
            as_of=self.as_of,
        )
