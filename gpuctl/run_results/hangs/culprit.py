"""Compare the ranks of a run: find the ranks that a collective lacks, and the ranks that wait in it. Pure.

The finding is data; `gpuctl.run_results.hangs.sentences` puts it into words.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import mean, median, quantiles
from typing import Any

from gpuctl.run_results.failures.stacks import (
    collective,
)
from gpuctl.run_results.hangs.rank import TIMES_BUSY, Rank
from inventories.runs.activity import Collective

MIN_HUNG_S = 10.0
"""Minimum wait of a hang: a rank may just have come earlier."""
MIN_SLOW_S = 1.0
TIMES_HUNG, TIMES_SLOW = 20, 4
"""Multiples of the usual interval between two collectives."""
SHARE_WAITED = 0.5
"""Share of the allowed time that a hung rank has waited in a collective, at least."""

MIN_COUNTED = 8
MIN_LATE_S = 0.02
"""A smaller delay may be the error of the nodes' clocks."""
SHARE_LAST, SHARE_OF_INTERVAL = 0.6, 0.2
"""A late rank comes last in this share of the collectives, with a delay of this share of the time between two."""


class Kind(StrEnum):
    """The state of a run, by its ranks."""

    STOPPED = "stopped"
    EXITED = "exited"
    DEAD_WORKER = "dead worker"
    NEVER_ENTERED = "never entered"
    DIFFERENT = "different"
    NOT_ASKED = "not asked"
    ALL_INSIDE = "all inside"
    POINT_TO_POINT = "point to point"
    BY_STACKS = "by stacks"
    NOT_BEGUN = "not begun"
    WORKS = "works"
    IDLE = "idle"
    """No rank works, and no rank is known to wait: gloo's sends and receives are in no record."""
    DRIVER = "driver"
    """A driver of Ray's, whose workers are not known because Ray starts them."""
    UNKNOWN = "unknown"


PASSING = (Kind.NEVER_ENTERED, Kind.ALL_INSIDE, Kind.POINT_TO_POINT)
"""States that every healthy run passes through for a moment."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """The rank that the others wait for at most collectives."""

    rank: Rank
    collective: str
    last: int
    """Number of collectives to which it came last, of `counted`."""
    counted: int
    late_s: float
    """Mean delay after the first rank."""
    interval_s: float
    """Median time between two collectives."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of a comparison."""

    kind: Kind
    ranks: tuple[Rank, ...]
    """All ranks of the run."""
    culprits: tuple[Rank, ...] = ()
    waiting: tuple[Rank, ...] = ()
    collective: Collective | None = None
    """The collective in which they wait. `None`: its number is not known."""
    inside: Mapping[int, Collective] | None = None
    """Rank → its collective, if these differ."""
    since_s: float | None = None
    """The longest wait."""
    usual_s: float | None = None
    """The usual time between two collectives. `None`: not known."""
    late: Late | None = None
    """The rank that comes last to most collectives of a running run."""

    @property
    def waits_long(self) -> bool:
        """Return whether the wait is longer than the run's past allows."""
        return (self.since_s or 0.0) >= max(MIN_HUNG_S, TIMES_HUNG * (self.usual_s or 0.0))

    @property
    def waits_longer(self) -> bool:
        """Return whether the wait is longer than usual."""
        return (self.since_s or 0.0) >= max(MIN_SLOW_S, TIMES_SLOW * (self.usual_s or 0.0))


def blocks(finding: Finding, silent_s: float, allowed_s: float) -> bool:
    """Return whether a run hangs: a node was silent for `silent_s`, while the run's past allows `allowed_s`.

    The run does not hang while no rank waits for another: the ranks compile, evaluate or save. Nor while other nodes
    make progress: their ranks write, or the waits are short. An awaited rank that works may work alone, and gets more
    time; so do ranks that do nothing, and may wait for something else.
    """
    if finding.kind in (Kind.WORKS, Kind.NOT_BEGUN, Kind.DRIVER):
        return False
    waited_s = allowed_s if finding.since_s is None else finding.since_s
    if finding.kind is not Kind.STOPPED and waited_s < SHARE_WAITED * allowed_s:
        return False
    activities = [rank.activity for rank in finding.ranks if rank.activity]
    written = [activity.wrote_s for activity in activities if activity.wrote_s is not None]
    silent_s = min([silent_s, *written])
    alone = finding.kind in (Kind.NEVER_ENTERED, Kind.POINT_TO_POINT, Kind.BY_STACKS) and finding.culprits
    works = alone and all(rank.works for rank in finding.culprits)
    return silent_s >= allowed_s * (TIMES_BUSY if works or finding.kind is Kind.IDLE else 1)


def culprits_idle(finding: Finding) -> bool:
    """Return whether all ranks that are waited for do nothing or have ended: then even a start hangs.

    Before its first step a script may load data or compile in one rank for any time, while the others wait.
    """
    awaited = finding.culprits or [rank for rank in finding.ranks if rank not in finding.waiting]
    return all(rank.idle or rank.exited or rank.stopped for rank in awaited)


def compare(ranks: Sequence[Rank]) -> Finding:
    """Find the waiting ranks and the ranks they wait for; in a running run also the rank that usually comes last."""
    finding = _who_waits(ranks)
    if finding.kind is Kind.WORKS or (finding.kind in PASSING and not finding.waits_long):
        return replace(finding, late=latest(ranks))
    return finding


def _who_waits(ranks: Sequence[Rank]) -> Finding:
    everyone = tuple(ranks)
    stuck = _in_collectives(everyone) or _point_to_point(everyone) or _by_stacks(everyone)
    waiting = stuck.waiting if stuck else ()
    shared: dict[str, Any] = {"ranks": everyone, "collective": stuck.collective if stuck else None}
    if stuck is not None:
        shared |= {"since_s": stuck.since_s, "usual_s": stuck.usual_s}
    exited = tuple(rank for rank in everyone if rank.exited)
    for kind, culprits in (
        (Kind.STOPPED, tuple(rank for rank in everyone if rank.stopped)),
        (Kind.EXITED, exited if waiting and len(exited) < len(everyone) else ()),
        (Kind.DEAD_WORKER, tuple(rank for rank in everyone if rank.dead_child is not None)),
    ):
        if culprits:
            remaining = tuple(rank for rank in waiting if rank not in culprits)
            return Finding(kind=kind, culprits=culprits, waiting=remaining, **shared)
    if stuck is not None:
        return stuck
    if all(rank.begun is False for rank in everyone):
        return Finding(kind=Kind.NOT_BEGUN, ranks=everyone)
    if any(rank.frames or rank.last() for rank in everyone):
        works = _works(everyone)
        idle = len(everyone) > 1 and all(rank.idle for rank in everyone)
        recently = works.since_s is not None and not works.waits_long
        return replace(works, kind=Kind.IDLE) if idle and not recently else works
    return Finding(kind=Kind.UNKNOWN, ranks=everyone)


def _works(ranks: tuple[Rank, ...]) -> Finding:
    """Return a finding without a waiting rank; the age of the last collective shows whether the run progresses."""
    entered = [(rank, last) for rank in ranks if (last := rank.last()) is not None]
    if not entered:
        return Finding(kind=Kind.WORKS, ranks=ranks)
    rank, last = min(entered, key=lambda pair: _age(*pair))
    usual_s = usual_interval_s([rank], last.group)
    return Finding(kind=Kind.WORKS, ranks=ranks, since_s=_age(rank, last), usual_s=usual_s)


def _in_collectives(ranks: tuple[Rank, ...]) -> Finding | None:
    """Return the finding on collectives, from torch's flight recorder; the group with the longest wait counts."""
    inside = {rank.rank: rank.inside() for rank in ranks}
    groups = {group for entered in inside.values() for group in entered}
    findings = [_in_group(group, ranks, inside) for group in sorted(groups)]
    # A group that somebody has not entered explains one that all are in.
    return max(
        findings, key=lambda each: (each.kind is not Kind.ALL_INSIDE, each.since_s or 0.0), default=None
    )


def _in_group(group: str, ranks: tuple[Rank, ...], inside: Mapping[int, Mapping[str, Collective]]) -> Finding:
    first = min(entered[group].sequence for entered in inside.values() if group in entered)
    known = [rank for rank in ranks if rank.activity is not None]
    waiting = [
        rank for rank in known if group in inside[rank.rank] and inside[rank.rank][group].sequence == first
    ]
    # The default group has all ranks; another group those that were ever in it.
    members = known if _is_default(group, ranks) else [rank for rank in known if rank.last(group) is not None]
    missing = [rank for rank in members if (last := rank.last(group)) is None or last.sequence < first]
    entry = inside[waiting[0].rank][group]
    since_s = max(_age(rank, inside[rank.rank][group]) for rank in waiting)
    shared: dict[str, Any] = {
        "ranks": ranks,
        "waiting": tuple(waiting),
        "collective": entry,
        "since_s": since_s,
        "usual_s": usual_interval_s(waiting, group),
    }
    silent = tuple(rank for rank in ranks if rank.activity is None)
    kinds = {(inside[rank.rank][group].name, inside[rank.rank][group].sizes) for rank in waiting}
    if len({name for name, _ in kinds}) > 1 or (len(kinds) > 1 and not missing and entry.name in _SAME_SIZES):
        entered = {rank.rank: inside[rank.rank][group] for rank in waiting}
        minority = _minority(waiting, lambda rank: (entered[rank.rank].name, entered[rank.rank].sizes))
        return Finding(kind=Kind.DIFFERENT, culprits=minority or tuple(waiting), inside=entered, **shared)
    if missing:
        return Finding(kind=Kind.NEVER_ENTERED, culprits=tuple(missing), **shared)
    if silent and _is_default(group, ranks):
        return Finding(kind=Kind.NOT_ASKED, culprits=silent, **shared)
    return Finding(kind=Kind.ALL_INSIDE, **shared)


def _minority(ranks: Sequence[Rank], does: Callable[[Rank], object]) -> tuple[Rank, ...]:
    """Return the ranks that differ from the majority. Empty: no more than half do the same."""
    ((usual, count),) = Counter(map(does, ranks)).most_common(1)
    return tuple(rank for rank in ranks if does(rank) != usual) if count * 2 > len(ranks) else ()


_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "reduce_scatter", "_reduce_scatter_base"})
"""Collectives whose input has the same size on all ranks."""


def _is_default(group: str, ranks: Sequence[Rank]) -> bool:
    """Return whether the process group has all ranks."""
    known = (entry for rank in ranks for entry in rank.collectives)
    return group == "0" or any(entry.group == group and entry.title == "default_pg" for entry in known)


def _age(rank: Rank, entered: Collective) -> float:
    assert rank.activity is not None
    return max(0.0, rank.activity.now - entered.entered_at)


def usual_interval_s(ranks: Sequence[Rank], group: str) -> float | None:
    """Return the 95th percentile of the time between two collectives of a group. `None`: too few collectives."""
    gaps: list[float] = []
    for rank in ranks:
        at = [entry.entered_at for entry in rank.collectives if entry.group == group]
        gaps += [later - earlier for earlier, later in pairwise(at)]
    return quantiles(gaps, n=20)[-1] if len(gaps) >= 2 else None


def _point_to_point(ranks: tuple[Rank, ...]) -> Finding | None:
    """Return the finding on sends and receives, from torch's flight recorder, which has NCCL's."""
    inside = {rank.rank: entry for rank in ranks if (entry := rank.point_to_point()) is not None}
    waiting = [rank for rank in ranks if rank.rank in inside]
    if not waiting:
        return None
    first = max(waiting, key=lambda rank: _age(rank, inside[rank.rank]))
    entry = inside[first.rank]
    return Finding(
        kind=Kind.POINT_TO_POINT,
        ranks=ranks,
        culprits=tuple(rank for rank in ranks if rank.activity is not None and rank.rank not in inside),
        waiting=tuple(waiting),
        collective=entry,
        inside=inside,
        since_s=_age(first, entry),
        usual_s=usual_interval_s(waiting, entry.group),
    )


def _by_stacks(ranks: tuple[Rank, ...]) -> Finding | None:
    """Return the finding on collectives from the stacks alone: without a number, and with an upper limit of the wait.

    The limit is the time since a waiting rank entered another collective.
    """
    inside = tuple(rank for rank in ranks if collective(rank.frames))
    outside = tuple(rank for rank in ranks if rank.activity is not None and rank not in inside)
    if not inside:
        return None
    if not outside and (minority := _minority(inside, lambda rank: collective(rank.frames))):
        inside, outside = tuple(rank for rank in inside if rank not in minority), minority
    entered = [(rank, last) for rank in inside if (last := rank.last()) is not None]
    last_s = min((_age(rank, last) for rank, last in entered), default=None)
    usual = [usual_interval_s([rank], last.group) for rank, last in entered]
    return Finding(
        kind=Kind.BY_STACKS,
        ranks=ranks,
        culprits=outside,
        waiting=inside,
        since_s=last_s,
        usual_s=max((interval_s for interval_s in usual if interval_s is not None), default=None),
    )


def latest(ranks: Sequence[Rank]) -> Late | None:
    """Return the rank that usually comes last. `None`: no rank does. Clock offsets are subtracted."""
    came: dict[tuple[str, int], dict[int, float]] = {}
    names: dict[tuple[str, int], str] = {}
    for at, rank in enumerate(ranks):
        for entry in rank.collectives:
            if not entry.point_to_point:
                times = came.setdefault((entry.group, entry.sequence), {})
                times[at] = entry.entered_at - rank.clock_offset_s
                names[entry.group, entry.sequence] = entry.name
    shared = {key: times for key, times in came.items() if len(times) == len(ranks) > 1}
    groups = Counter(group for group, _ in shared)
    if not groups or groups.most_common(1)[0][1] < MIN_COUNTED:
        return None
    group = groups.most_common(1)[0][0]
    rounds = [(key, times) for key, times in sorted(shared.items()) if key[0] == group]
    last = Counter(max(times, key=lambda at: times[at]) for _, times in rounds)
    late, often = last.most_common(1)[0]
    late_rounds = [(key, times) for key, times in rounds if max(times, key=lambda at: times[at]) == late]
    late_s = mean(times[late] - min(times.values()) for _, times in late_rounds)
    firsts = [min(times.values()) for _, times in rounds]
    interval_s = median(later - earlier for earlier, later in pairwise(firsts))
    if often < SHARE_LAST * len(rounds) or late_s < max(MIN_LATE_S, SHARE_OF_INTERVAL * interval_s):
        return None
    return Late(
        rank=ranks[late],
        collective=names[late_rounds[-1][0]],
        last=often,
        counted=len(rounds),
        late_s=late_s,
        interval_s=interval_s,
    )
