"""Find the rank of a running run that comes last to its collectives, and its delay. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuctl.run_results.hangs.rank import Rank

MIN_COUNTED = 8
MIN_LATE_S = 0.02
"""A smaller delay may be the error of the nodes' clocks."""
SHARE_LAST, SHARE_OF_INTERVAL = 0.6, 0.2
"""A late rank comes last in this share of the collectives, with a delay of this share of the time between two."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """The rank that the others wait for at most collectives."""

    rank: "Rank"
    collective: str
    last: int
    """Number of collectives to which it came last, of `counted`."""
    counted: int
    late_s: float
    """Mean delay after the first rank."""
    interval_s: float
    """Median time between two collectives."""


def latest(ranks: "Sequence[Rank]") -> Late | None:
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
