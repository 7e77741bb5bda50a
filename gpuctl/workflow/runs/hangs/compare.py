"""Compares what the ranks of a run are doing: who has not entered which collective, and who waits in it. Pure.

The finding is data; `gpuctl.workflow.runs.hangs.sentences` says it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import quantiles
from typing import Any

from gpuctl.run_results.failures.stacks import (
    collective,
)
from gpuctl.workflow.runs.hangs.lateness import Late, latest
from gpuctl.workflow.runs.hangs.rank import TIMES_BUSY, Rank
from remote.runs.rank_activity import Collective

LEAST_HUNG_S = 10.0
"""Who has waited for less may just have come earlier."""
LEAST_SLOW_S = 1.0
TIMES_HUNG, TIMES_SLOW = 20, 4
"""As many times the usual interval between two collectives."""
SHARE_WAITED = 0.5
"""Of the allowed time: who hangs has waited in one collective for as long at least."""


class Kind(StrEnum):
    """What is the matter."""

    STOPPED = "stopped"
    GONE = "gone"
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
    """No rank works, and none is known to wait: gloo's sends and receives are in no record."""
    DRIVER = "driver"
    """It is a driver of Ray's: what the workers do that it has Ray start is not known."""
    UNKNOWN = "unknown"


PASSING = (Kind.NEVER_ENTERED, Kind.ALL_INSIDE, Kind.POINT_TO_POINT)
"""What is so for a moment in every run that is well."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the comparison has found."""

    kind: Kind
    ranks: tuple[Rank, ...]
    """All of them."""
    culprits: tuple[Rank, ...] = ()
    waiting: tuple[Rank, ...] = ()
    collective: Collective | None = None
    """The one in which they wait. `None`: it is not known by its number."""
    inside: Mapping[int, Collective] | None = None
    """By rank, where they are in different ones."""
    since_s: float | None = None
    """For how long the first of them has waited."""
    usual_s: float | None = None
    """The usual time between two collectives. `None`: not known."""
    late: Late | None = None
    """The rank that comes last to most collectives of a run that goes on."""

    @property
    def waits_long(self) -> bool:
        """Whether that is longer than its past allows."""
        return (self.since_s or 0.0) >= max(LEAST_HUNG_S, TIMES_HUNG * (self.usual_s or 0.0))

    @property
    def waits_longer(self) -> bool:
        """Whether it is longer than usual."""
        return (self.since_s or 0.0) >= max(LEAST_SLOW_S, TIMES_SLOW * (self.usual_s or 0.0))


def blocks(finding: Finding, silent_s: float, allowed_s: float) -> bool:
    """Return whether a run hangs of which a node was silent for `silent_s`, where its past allows `allowed_s`.

    It does not while no rank waits for another: it compiles, evaluates or saves. Nor while other nodes go on: their
    ranks write, or who waits has done so for a moment only. One that is waited for and works may do so alone, and
    gets more time; so do ranks that do nothing, and may wait for something else.
    """
    if finding.kind in (Kind.WORKS, Kind.NOT_BEGUN, Kind.DRIVER):
        return False
    waited_s = allowed_s if finding.since_s is None else finding.since_s
    if finding.kind is not Kind.STOPPED and waited_s < SHARE_WAITED * allowed_s:
        return False
    written = [rank.told.wrote_s for rank in finding.ranks if rank.told and rank.told.wrote_s is not None]
    silent_s = min([silent_s, *written])
    alone = finding.kind in (Kind.NEVER_ENTERED, Kind.POINT_TO_POINT, Kind.BY_STACKS) and finding.culprits
    works = alone and all(rank.works for rank in finding.culprits)
    return silent_s >= allowed_s * (TIMES_BUSY if works or finding.kind is Kind.IDLE else 1)


def in_vain(finding: Finding) -> bool:
    """Return whether all ranks that are waited for are known to do nothing, or are gone: also a start hangs then.

    Before its first step a script may load data or compile in one rank for any time, while the others wait.
    """
    others = finding.culprits or [rank for rank in finding.ranks if rank not in finding.waiting]
    return all(rank.idle or rank.gone or rank.stopped for rank in others)


def compare(ranks: Sequence[Rank]) -> Finding:
    """Find who waits for whom, and in a run that goes on who comes last as a rule."""
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
    for kind, culprits in (
        (Kind.STOPPED, tuple(rank for rank in everyone if rank.stopped)),
        (Kind.GONE, _gone(everyone) if waiting else ()),
        (Kind.DEAD_WORKER, tuple(rank for rank in everyone if rank.dead_child is not None)),
    ):
        if culprits:
            others = tuple(rank for rank in waiting if rank not in culprits)
            return Finding(kind=kind, culprits=culprits, waiting=others, **shared)
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
    """No rank waits; how long ago the last one entered a collective tells whether the run goes on."""
    entered = [(rank, last) for rank in ranks if (last := rank.last()) is not None]
    if not entered:
        return Finding(kind=Kind.WORKS, ranks=ranks)
    rank, last = min(entered, key=lambda one: _age(*one))
    usual_s = usual_interval_s([rank], last.group)
    return Finding(kind=Kind.WORKS, ranks=ranks, since_s=_age(rank, last), usual_s=usual_s)


def _gone(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """The ranks that have ended while others have not."""
    gone = tuple(rank for rank in ranks if rank.gone)
    return gone if len(gone) < len(ranks) else ()


def _in_collectives(ranks: tuple[Rank, ...]) -> Finding | None:
    """Who waits in a collective, by torch's flight recorder; the group in which ranks have waited longest counts."""
    inside = {rank.rank: rank.inside() for rank in ranks}
    groups = {group for entered in inside.values() for group in entered}
    findings = [_in_group(group, ranks, inside) for group in sorted(groups)]
    # A group that somebody has not entered explains one that all are in.
    return max(
        findings, key=lambda found: (found.kind is not Kind.ALL_INSIDE, found.since_s or 0.0), default=None
    )


def _in_group(group: str, ranks: tuple[Rank, ...], inside: Mapping[int, Mapping[str, Collective]]) -> Finding:
    first = min(entered[group].sequence for entered in inside.values() if group in entered)
    known = [rank for rank in ranks if rank.told is not None]
    waiting = [
        rank for rank in known if group in inside[rank.rank] and inside[rank.rank][group].sequence == first
    ]
    members = [rank for rank in known if _takes_part(rank, group, ranks)]
    missing = [rank for rank in members if (last := rank.last(group)) is None or last.sequence < first]
    one = inside[waiting[0].rank][group]
    since_s = max(_age(rank, inside[rank.rank][group]) for rank in waiting)
    shared: dict[str, Any] = {
        "ranks": ranks,
        "waiting": tuple(waiting),
        "collective": one,
        "since_s": since_s,
        "usual_s": usual_interval_s(waiting, group),
    }
    silent = tuple(rank for rank in ranks if rank.told is None)
    kinds = {(inside[rank.rank][group].name, inside[rank.rank][group].sizes) for rank in waiting}
    if len({name for name, _ in kinds}) > 1 or (len(kinds) > 1 and not missing and one.name in _SAME_SIZES):
        entered = {rank.rank: inside[rank.rank][group] for rank in waiting}
        few = _few(waiting, lambda rank: (entered[rank.rank].name, entered[rank.rank].sizes))
        return Finding(kind=Kind.DIFFERENT, culprits=few or tuple(waiting), inside=entered, **shared)
    if missing:
        return Finding(kind=Kind.NEVER_ENTERED, culprits=tuple(missing), **shared)
    if silent and _is_default(group, ranks):
        return Finding(kind=Kind.NOT_ASKED, culprits=silent, **shared)
    return Finding(kind=Kind.ALL_INSIDE, **shared)


def _few(ranks: Sequence[Rank], does: Callable[[Rank], object]) -> tuple[Rank, ...]:
    """The ranks that do not do the same as most of these; none where no more than half do the same."""
    ((most, count),) = Counter(map(does, ranks)).most_common(1)
    return tuple(rank for rank in ranks if does(rank) != most) if count * 2 > len(ranks) else ()


_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "reduce_scatter", "_reduce_scatter_base"})
"""Collectives whose input has the same size on all ranks."""


def _takes_part(rank: Rank, group: str, ranks: Sequence[Rank]) -> bool:
    """Whether a rank is of a process group. The default group has all; of another those that were ever in it."""
    return rank.last(group) is not None or _is_default(group, ranks)


def _is_default(group: str, ranks: Sequence[Rank]) -> bool:
    """Whether it is the process group of all ranks."""
    known = (one for rank in ranks if rank.told is not None for one in rank.told.collectives)
    return group == "0" or any(one.group == group and one.title == "default_pg" for one in known)


def _age(rank: Rank, entered: Collective) -> float:
    assert rank.told is not None
    return max(0.0, rank.told.now - entered.entered_at)


def usual_interval_s(ranks: Sequence[Rank], group: str) -> float | None:
    """Return the 95th percentile of the time between two collectives of a group; `None` where there were too few."""
    gaps: list[float] = []
    for rank in ranks:
        at = [one.entered_at for one in (rank.told.collectives if rank.told else ()) if one.group == group]
        gaps += [later - earlier for earlier, later in pairwise(at)]
    return quantiles(gaps, n=20)[-1] if len(gaps) >= 2 else None


def _point_to_point(ranks: tuple[Rank, ...]) -> Finding | None:
    """Who waits in a send or a receive, by torch's flight recorder: NCCL's are in it."""
    inside = {rank.rank: one for rank in ranks if (one := rank.point_to_point()) is not None}
    waiting = [rank for rank in ranks if rank.rank in inside]
    if not waiting:
        return None
    first = max(waiting, key=lambda rank: _age(rank, inside[rank.rank]))
    one = inside[first.rank]
    return Finding(
        kind=Kind.POINT_TO_POINT,
        ranks=ranks,
        culprits=tuple(rank for rank in ranks if rank.told is not None and rank.rank not in inside),
        waiting=tuple(waiting),
        collective=one,
        inside=inside,
        since_s=_age(first, one),
        usual_s=usual_interval_s(waiting, one.group),
    )


def _by_stacks(ranks: tuple[Rank, ...]) -> Finding | None:
    """Who waits in a collective, by the stacks alone: its number is not known, and of its time only the most.

    That is the time since one of them entered another collective.
    """
    inside = tuple(rank for rank in ranks if collective(rank.frames))
    outside = tuple(rank for rank in ranks if rank.told is not None and rank not in inside)
    if not inside:
        return None
    if not outside and (few := _few(inside, lambda rank: collective(rank.frames))):
        inside, outside = tuple(rank for rank in inside if rank not in few), few
    entered = [(rank, last) for rank in inside if (last := rank.last()) is not None]
    last_s = min((_age(rank, last) for rank, last in entered), default=None)
    usual = [usual_interval_s([rank], last.group) for rank, last in entered]
    return Finding(
        kind=Kind.BY_STACKS,
        ranks=ranks,
        culprits=outside,
        waiting=inside,
        since_s=last_s,
        usual_s=max((one for one in usual if one is not None), default=None),
    )
