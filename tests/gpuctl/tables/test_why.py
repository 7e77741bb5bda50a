"""What the table of `why` says of each rank's process."""

import io

from rich.console import Console

from gpuctl.tables.why import why_table
from inventories.hang import Hang, RankStacks


def test_process_that_is_gone_is_told_from_one_that_starts_and_one_not_asked() -> None:
    ranks = tuple(
        RankStacks(
            rank=at, node="a", state=state, begun=begun, cpu=None, last_collective=None, at=None, stacks=""
        )
        for at, (state, begun) in enumerate(((None, False), (None, True), (None, None), ("S", True)))
    )
    out = io.StringIO()
    Console(width=100, file=out).print(
        why_table(Hang(run="r", verdict="unknown", sentence="So.", ranks=ranks))
    )
    assert [row.split()[2] for row in out.getvalue().splitlines()[3:]] == ["starts", "gone", "-", "sleeps"]
