"""The table of `why`: the sentence, and a row for each rank.

Imports rich: import this module where you print.
"""

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl.tables.layout import FittedTable
from gpuctl.text import UNKNOWN, clean, clean_lines
from inventories.hang import Hang, RankStacks

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
    """The sentence, the ranks, and with `stacks` those of all their threads."""
    parts: list[RenderableType] = [Text(clean(hang.sentence, 10_000), style=STYLES[hang.verdict])]
    if hang.ranks:
        titles = ("rank", "node", "process", "CPU", "last collective", "where")
        parts += ["", FittedTable(titles, [_row(rank) for rank in hang.ranks], folded=("where",))]
    if stacks:
        for rank in hang.ranks:
            parts += ["", Text(f"rank {rank.rank} on {rank.node}"), Text(clean_lines(rank.stacks.rstrip()))]
    return Group(*parts)


def _process(rank: RankStacks) -> str:
    if rank.state is None:
        return UNKNOWN if rank.begun is None else "gone" if rank.begun else "starts"
    return STATES.get(rank.state, rank.state)


def _row(rank: RankStacks) -> tuple[str, ...]:
    return (
        str(rank.rank),
        rank.node,
        _process(rank),
        UNKNOWN if rank.cpu is None else f"{rank.cpu * 100:.0f} %",
        clean(rank.last_collective or UNKNOWN),
        clean(rank.at or UNKNOWN),
    )
