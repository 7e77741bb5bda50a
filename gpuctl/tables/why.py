"""The table of `why`: the sentence, and a row for each rank, of many ranks for each group that does the same.

Imports rich: import this module where you print.
"""

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl.tables.layout import FittedTable
from gpuctl.text import UNKNOWN, clean, clean_lines
from inventories.runs.hang import Hang, RankStacks, alike
from remote.findings import number_ranges

RANKS_SHOWN = 8
"""Ranks with a row each; of more ranks, equal ones share a row."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")
STYLES = {"hung": "bold red", "slow": "yellow", "fine": "green", "unknown": "yellow"}
STATES = {
    "R": "works",
    "S": "sleeps",
    "D": "waits (disk, driver)",
    "T": "stopped",
    "t": "stopped",
    "Z": "dead",
}


def why_table(hang: Hang, *, stacks: bool = False) -> RenderableType:
    """Show the sentence, the ranks, and with `stacks` all their threads' stacks."""
    parts: list[RenderableType] = [Text(clean(hang.sentence, 10_000), style=STYLES[hang.verdict])]
    if hang.ranks:
        titles = ("rank", "node", "process", "CPU", "last collective", "where")
        each_rank = len(hang.ranks) <= RANKS_SHOWN
        rows = alike(
            hang.ranks, lambda rank: rank.rank if each_rank else (rank.state, rank.last_collective, rank.at)
        )
        parts += ["", FittedTable(titles, [_row(group) for _, group in rows], folded=("rank", "where"))]
    if stacks:
        for _, group in alike(hang.ranks, lambda rank: _ADDRESS.sub("", rank.stacks)):
            ranks = (
                f"rank {group[0].rank}"
                if len(group) == 1
                else f"ranks {number_ranges(r.rank for r in group)}"
            )
            stack = clean_lines(group[0].stacks.rstrip())
            parts += ["", Text(f"{ranks} on {_nodes(group)}"), Text(stack)]
    return Group(*parts)


def _nodes(ranks: Sequence[RankStacks]) -> str:
    nodes = {rank.node for rank in ranks}
    return ranks[0].node if len(nodes) == 1 else f"{len(nodes)} nodes"


def _process(rank: RankStacks) -> str:
    if rank.state is None:
        return UNKNOWN if rank.begun is None else "gone" if rank.begun else "starts"
    return STATES.get(rank.state, rank.state)


def _row(ranks: Sequence[RankStacks]) -> tuple[str, ...]:
    first = ranks[0]
    loads = sorted({round(rank.cpu * 100) for rank in ranks if rank.cpu is not None})
    return (
        number_ranges(rank.rank for rank in ranks),
        _nodes(ranks),
        _process(first),
        "-".join(map(str, sorted({loads[0], loads[-1]}))) + " %" if loads else UNKNOWN,
        clean(first.last_collective or UNKNOWN),
        clean(first.at or UNKNOWN),
    )
