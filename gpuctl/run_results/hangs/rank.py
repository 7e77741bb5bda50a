"""A rank of a run that may hang, from its node's report."""

from dataclasses import dataclass
from functools import cached_property

from gpuctl.run_results.failures.log_errors import read
from gpuctl.run_results.failures.stacks import (
    Frame,
    ends,
    in_project,
    script_thread,
    waits_for_data,
)
from gpuctl.text import clean
from inventories.runs.activity import ChildActivity, Collective, RankActivity

STOPPED_STATES = ("T", "t")


PLACE_LENGTH = 64


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank, from its node's report."""

    rank: int
    node: str
    activity: RankActivity | None = None
    """`None`: its node could not be asked."""
    clock_offset_s: float = 0.0
    """Its node's clock minus this computer's."""

    @property
    def place(self) -> str:
        """Return the rank's part of the model. Empty: the whole model, or not known."""
        return "" if self.activity is None else clean(self.activity.place, PLACE_LENGTH)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Return the operations in torch's flight recorder."""
        return self.activity.collectives if self.activity else ()

    @property
    def frames(self) -> list[Frame]:
        """Return the frames of the thread that runs the script, the innermost first."""
        return [] if self.activity is None else script_thread(self.activity.stacks, self.activity.code)

    @property
    def at(self) -> Frame | None:
        """Return the rank's place in the script."""
        return None if self.activity is None else in_project(self.frames, self.activity.code)

    @property
    def stopped(self) -> bool:
        """Return whether the process is stopped by a signal."""
        return self.activity is not None and self.activity.state in STOPPED_STATES

    @property
    def begun(self) -> bool | None:
        """Return whether the rank has had a process. `None`: not known."""
        activity = self.activity
        return None if activity is None else activity.began_at is not None or bool(activity.collectives)

    @property
    def exited(self) -> bool:
        """Return whether the rank's process has ended."""
        activity = self.activity
        return activity is not None and activity.began_at is not None and activity.state in (None, "Z")

    @cached_property
    def raised(self) -> str:
        """Return the exception of an ended script whose process still exists: `ValueError: no (train.py:5)`."""
        activity = self.activity
        if activity is None or self.exited or "Traceback" not in activity.log_tail:
            return ""
        over, end = ends(activity.stacks), read(activity.log_tail)
        if not end.traceback or over is False or (over is None and not end.last):
            return ""
        return end.words + (f" ({end.place})" if end.place else "")

    @property
    def holds_lock(self) -> bool:
        """Return whether the rank is in C code that holds Python's lock, so that its server can't report stacks."""
        activity = self.activity
        return activity is not None and activity.server is False and activity.stacks_by == "signal"

    @property
    def works(self) -> bool:
        """Return whether the rank computes, reads or writes."""
        activity = self.activity
        return activity is not None and (
            (activity.busy or 0) >= BUSY or (activity.io_bytes_per_s or 0) >= BUSY_BYTES_PER_S
        )

    @property
    def idle(self) -> bool:
        """Return whether the rank has a process that does nothing. False also if that is not known."""
        activity = self.activity
        if activity is None or activity.busy is None or activity.io_bytes_per_s is None or self.exited:
            return False
        return activity.busy < IDLE and activity.io_bytes_per_s < IDLE_BYTES_PER_S

    @property
    def waits_for_data(self) -> bool:
        """Return whether the rank waits for a DataLoader's worker."""
        return waits_for_data(self.frames)

    @property
    def dead_child(self) -> ChildActivity | None:
        """Return a dead child process that the rank may wait for. `None`: no such process."""
        if self.activity is None or not self.waits_for_data:
            return None
        children = self.activity.children
        return next((child for child in children if child.state in ("Z", *STOPPED_STATES)), None)

    def last(self, group: str | None = None) -> Collective | None:
        """Return the collective that it entered last, in that process group or in any."""
        entered = [
            entry for entry in self.collectives if not entry.point_to_point and group in (None, entry.group)
        ]
        return max(entered, key=lambda entry: entry.entered_at, default=None)

    def point_to_point(self) -> Collective | None:
        """Return the rank's pending send or receive, if no other operation came later.

        Operations begun together are recorded as a single one after its parts, which are never recorded as ended.
        """
        last = max(self.collectives, key=lambda entry: entry.entered_at, default=None)
        return last if last is not None and last.point_to_point and not last.over else None

    def inside(self) -> dict[str, Collective]:
        """Return the collectives that it has entered and not left: by process group, the first of each."""
        first: dict[str, Collective] = {}
        for entry in self.collectives:
            if not entry.over and not entry.point_to_point and entry.sequence >= 0:
                known = first.get(entry.group)
                if known is None or entry.sequence < known.sequence:
                    first[entry.group] = entry
        return first


BUSY, BUSY_BYTES_PER_S, TIMES_BUSY = 0.5, 1e6, 4
"""A rank is busy with this share of a CPU, or this much I/O, and then gets this multiple of the time."""


IDLE, IDLE_BYTES_PER_S = 0.2, 1e5
"""A rank below both does nothing but answer the watch."""
