"""One rank of a run that may hang, as far as its node knows it."""

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
from remote.runs.rank_activity import ChildActivity, Collective, RankActivity

STOPPED_STATES = ("T", "t")


PLACE_LENGTH = 64


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank, as far as it is known."""

    rank: int
    node: str
    told: RankActivity | None = None
    """`None`: its node could not be asked."""
    clock_offset_s: float = 0.0
    """Its node's clock minus this computer's."""

    @property
    def place(self) -> str:
        """Which part of the model it has; empty: all of it, or it is not known."""
        return "" if self.told is None else clean(self.told.place, PLACE_LENGTH)

    @property
    def frames(self) -> list[Frame]:
        """Of the thread that runs the script, the innermost first."""
        return [] if self.told is None else script_thread(self.told.stacks, self.told.code)

    @property
    def at(self) -> Frame | None:
        """Where it is in the script."""
        return None if self.told is None else in_project(self.frames, self.told.code)

    @property
    def stopped(self) -> bool:
        """Whether its process was stopped."""
        return self.told is not None and self.told.state in STOPPED_STATES

    @property
    def begun(self) -> bool | None:
        """Whether it has had a process. `None`: not known."""
        told = self.told
        return None if told is None else told.began_at is not None or bool(told.collectives)

    @property
    def gone(self) -> bool:
        """Whether it had a process, and has none any more."""
        told = self.told
        return told is not None and told.began_at is not None and told.state in (None, "Z")

    @cached_property
    def raised(self) -> str:
        """The exception with which its script ended, where its process has not: `ValueError: no (train.py:5)`."""
        told = self.told
        if told is None or self.gone or "Traceback" not in told.log_tail:
            return ""
        over, end = ends(told.stacks), read(told.log_tail)
        if not end.traceback or over is False or (over is None and not end.last):
            return ""
        return end.words + (f" ({end.place})" if end.place else "")

    @property
    def holds_lock(self) -> bool:
        """Whether it is in C code that does not let go of Python's lock: its server could not tell its stacks."""
        return self.told is not None and self.told.server is False and self.told.stacks_by == "signal"

    @property
    def works(self) -> bool:
        """Whether it computes, reads or writes."""
        told = self.told
        return told is not None and (
            (told.busy or 0) >= BUSY or (told.io_bytes_per_s or 0) >= BUSY_BYTES_PER_S
        )

    @property
    def idle(self) -> bool:
        """Whether it is there, and does nothing. False, too: it is not known."""
        told = self.told
        if told is None or told.busy is None or told.io_bytes_per_s is None or self.gone:
            return False
        return told.busy < IDLE and told.io_bytes_per_s < IDLE_BYTES_PER_S

    @property
    def waits_for_data(self) -> bool:
        """Whether it waits for a DataLoader's worker."""
        return waits_for_data(self.frames)

    @property
    def dead_child(self) -> ChildActivity | None:
        """A process that it has started and that has died, where it waits for such a one."""
        if self.told is None or not self.waits_for_data:
            return None
        return next((child for child in self.told.children if child.state in ("Z", *STOPPED_STATES)), None)

    def last(self, group: str | None = None) -> Collective | None:
        """Return the collective that it entered last, in that process group or in any."""
        entered = [
            one
            for one in (self.told.collectives if self.told else ())
            if not one.point_to_point and group in (None, one.group)
        ]
        return max(entered, key=lambda one: one.entered_at, default=None)

    def point_to_point(self) -> Collective | None:
        """Return the send or receive that it has not ended, if that came last.

        What was begun together is recorded as one after its parts, which are never said to have ended.
        """
        last = max(self.told.collectives if self.told else (), key=lambda one: one.entered_at, default=None)
        return last if last is not None and last.point_to_point and not last.over else None

    def inside(self) -> dict[str, Collective]:
        """Return the collectives that it has entered and not left: by process group, the first of each."""
        found: dict[str, Collective] = {}
        for one in self.told.collectives if self.told else ():
            if not one.over and not one.point_to_point and one.sequence >= 0:
                known = found.get(one.group)
                if known is None or one.sequence < known.sequence:
                    found[one.group] = one
        return found


BUSY, BUSY_BYTES_PER_S, TIMES_BUSY = 0.5, 1e6, 4
"""Who keeps a CPU busy for so much of the time, or reads and writes so much, gets so many times the time."""


IDLE, IDLE_BYTES_PER_S = 0.2, 1e5
"""Who does less than that does nothing but to be asked."""
