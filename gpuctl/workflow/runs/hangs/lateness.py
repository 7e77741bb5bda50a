"""Which rank of a run that goes on comes last to its collectives, and by how much. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuctl.workflow.runs.hangs.rank import Rank

LEAST_COUNTED = 8
LEAST_S = 0.02
"""What is less may be the error of the nodes' clocks."""
SHARE_LAST, SHARE_OF_INTERVAL = 0.6, 0.2
"""A rank is late that comes last so often, and so much of the time between two collectives after the first."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """The rank that the others wait for at most collectives."""

    rank: "Rank"
    collective: str
    last: int
    """How often it came last, of `counted` collectives."""
    counted: int
    late_s: float
    """After the first rank, in the mean of those."""
    interval_s: float
    """Between two collectives."""


def latest(ranks: "Sequence[Rank]") -> Late | None:
    """Return the rank that comes last as a rule; `None` where there is none. Clocks' offsets are taken off."""
    came: dict[tuple[str, int], dict[int, float]] = {}
    names: dict[tuple[str, int], str] = {}
    for at, rank in enumerate(ranks):
        for one in rank.told.collectives if rank.told else ():
            if not one.point_to_point:
                came.setdefault((one.group, one.sequence), {})[at] = one.entered_at - rank.clock_offset_s
                names[one.group, one.sequence] = one.name
    shared = {key: times for key, times in came.items() if len(times) == len(ranks) > 1}
    groups = Counter(group for group, _ in shared)
    if not groups or groups.most_common(1)[0][1] < LEAST_COUNTED:
        return None
    group = groups.most_common(1)[0][0]
    rounds = [(key, times) for key, times in sorted(shared.items()) if key[0] == group]
    last = Counter(max(times, key=lambda at: times[at]) for _, times in rounds)
    who, often = last.most_common(1)[0]
    own = [(key, times) for key, times in rounds if max(times, key=lambda at: times[at]) == who]
    late_s = mean(times[who] - min(times.values()) for _, times in own)
    firsts = [min(times.values()) for _, times in rounds]
    interval_s = median(later - earlier for earlier, later in pairwise(firsts))
    if often < SHARE_LAST * len(rounds) or late_s < max(LEAST_S, SHARE_OF_INTERVAL * interval_s):
        return None
    return Late(
        rank=ranks[who],
        collective=names[own[-1][0]],
        last=often,
        counted=len(rounds),
        late_s=late_s,
        interval_s=interval_s,
    )
