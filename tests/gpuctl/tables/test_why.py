"""Test the table of `why` on each rank's process."""

import io

from rich.console import Console

from gpuctl.tables.why import why_table
from inventories.runs.hang import Hang, RankStacks


def drawn(ranks: tuple[RankStacks, ...], *, stacks: bool = False) -> list[str]:
    """The lines below the sentence and the titles."""
    out = io.StringIO()
    hang = Hang(run="r", verdict="unknown", sentence="So.", ranks=ranks)
    Console(width=100, file=out).print(why_table(hang, stacks=stacks))
    return out.getvalue().splitlines()[3:]


def test_many_ranks_that_do_the_same_have_one_row() -> None:
    ranks = tuple(
        RankStacks(
            rank=at,
            node=f"node-{at // 8}",
            state="S",
            cpu=0.01 * (at % 3),
            last_collective="broadcast #4" if at in (9, 62) else "all_reduce #4",
            at="train.py:9" if at in (9, 62) else "train.py:8",
            stacks=f"Thread 0x{at:x} (most recent call first):\n  File {at in (9, 62)}",
        )
        for at in range(64)
    )
    rows = drawn(ranks, stacks=True)
    assert [row.split() for row in rows[:2]] == [
        ["9,62", "2", "nodes", "sleeps", "0-2", "%", "broadcast", "#4", "train.py:9"],
        ["0-8,10-61,63", "8", "nodes", "sleeps", "0-2", "%", "all_reduce", "#4", "train.py:8"],
    ]
    assert [row for row in rows if row.startswith("ranks")] == [
        "ranks 9,62 on 2 nodes",
        "ranks 0-8,10-61,63 on 8 nodes",
    ]


def test_process_that_is_gone_is_told_from_one_that_starts_and_one_not_asked() -> None:
    ranks = tuple(
        RankStacks(
            rank=at, node="a", state=state, begun=begun, cpu=None, last_collective=None, at=None, stacks=""
        )
        for at, (state, begun) in enumerate(((None, False), (None, True), (None, None), ("S", True)))
    )
    assert [row.split()[2] for row in drawn(ranks)] == ["starts", "gone", "-", "sleeps"]
