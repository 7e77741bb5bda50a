"""The speed of steady steps, and the pace of a whole run, by marks of the work so far. Pure."""

from collections.abc import MutableSequence, Sequence
from itertools import pairwise
from typing import TypeAlias

WINDOW = 50
"""Marks of which a running job's speed is taken."""
MIN_MARKS = 4
"""A pace needs this number of marks."""
MARKS_APART_S = 1.0
"""Lines that arrive together, as after a lost connection, are one mark of the speed."""

Mark: TypeAlias = tuple[float, float]
"""A time in seconds, and the units (steps, samples) that were done by then."""


def add_mark(marks: MutableSequence[Mark], arrived_s: float, units: float) -> None:
    """Add a mark by the arrival of its line. Units that arrive soon after a mark are added to it."""
    recent = bool(marks) and arrived_s - marks[-1][0] < MARKS_APART_S
    began_s = marks.pop()[0] if recent else arrived_s
    marks.append((began_s, units))


def steady_speed(marks: Sequence[Mark]) -> float | None:
    """Return the units a second at which the median unit was done.

    So slow first steps, evaluations and checkpoints change nothing if marks come more often.

    Returns:
        `None` if the marks do not show it.
    """
    gaps, (since, before) = [], marks[0] if marks else (0.0, 0.0)
    for at, units in list(marks)[1:]:
        if units > before and at <= since:
            continue  # lines that were written together
        if units > before:
            gaps.append(((at - since) / (units - before), units - before))
        since, before = at, units
    gaps.sort()
    passed, total = 0.0, sum(units for _, units in gaps)
    for seconds, units in gaps:
        passed += units
        if passed >= total / 2:
            return 1 / seconds
    return None


def pace(marks: Sequence[Mark], *, begins: bool = True) -> float | None:
    """Return the units a second with all that comes between steps, such as evaluations.

    `begins`: the marks are the first of the run. Something is compiled then, and the first evaluation loads its
    libraries, so the slowest interval does not count.

    Returns:
        `None` before MIN_MARKS marks, or if they do not show it.
    """
    if len(marks) < MIN_MARKS:
        return None
    took = [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairwise(marks)]
    if begins:
        took.remove(max(took))
    seconds, units = sum(value for value, _ in took), sum(value for _, value in took)
    return units / seconds if seconds > 0 and units > 0 else None
