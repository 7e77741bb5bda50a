"""Groups of ranks that do the same, so that what many ranks do can be read. Pure."""

from collections.abc import Sequence

from gpuctl.run_results.hangs.rank import Rank
from remote.findings import number_ranges

MAX_NAMED = 4
"""Ranks, nodes or groups that a sentence names."""


def numbered(ranks: Sequence[Rank]) -> str:
    """Return `rank 1`, `ranks 0-61,63`."""
    numbers = number_ranges(rank.rank for rank in ranks)
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


def named(ranks: Sequence[Rank]) -> str:
    """Return `rank 1 on beta`, `ranks 0 on alpha and 2 on beta`, `ranks 0-61,63 on 8 nodes`."""
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} on {where(ranks[0])}"
    if len(ranks) <= MAX_NAMED:
        parts = [f"{rank.rank} on {where(rank)}" for rank in ranks]
        return f"ranks {', '.join(parts[:-1])} and {parts[-1]}"
    nodes = list(dict.fromkeys(rank.node for rank in ranks))
    return f"{numbered(ranks)} on {', '.join(nodes) if len(nodes) < MAX_NAMED else f'{len(nodes)} nodes'}"


def where(rank: Rank) -> str:
    """Return `beta`, `beta (stage 2 of 4)`."""
    return f"{rank.node} ({rank.place})" if rank.place else rank.node


def listed(parts: Sequence[str], joint: str) -> str:
    """Return the parts as one text; of many the first ones and the number of the others."""
    more = [f"and {len(parts) - MAX_NAMED} more"] if len(parts) > MAX_NAMED else []
    return joint.join([*parts[:MAX_NAMED], *more])
