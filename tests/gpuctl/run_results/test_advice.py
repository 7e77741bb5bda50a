"""What is advised where a run failed or hung of which only some nodes had the files of an earlier run."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuctl.run_results.advice import advice_on
from inventories.disk.store import Store
from inventories.end_reasons import Reason
from inventories.hang import Hang
from inventories.run import FirstError, Result, Run, Seconds, TrainSummary

UNEVEN = "a.pt is on gpu-0 alone, from an earlier run: if the script loads it, add --fresh (begin without it)"
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: 'runs/a.pt'"


@pytest.mark.parametrize(
    ("reason", "hung", "advised"),
    [
        (Reason.ENDED_EARLY, False, True),
        (Reason.HUNG, False, True),
        (Reason.EXIT_CODE, False, True),
        (Reason.FILE_NOT_FOUND, False, True),
        (Reason.LOST_PEER, False, True),
        (Reason.OUT_OF_MEMORY, False, False),
        (Reason.NODE_LOST, False, False),
        (None, True, True),
        (None, False, False),
    ],
)
def test_files_that_differed_are_told_where_they_explain_the_end(
    tmp_path: Path, reason: Reason | None, hung: bool, advised: bool
) -> None:
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    folder.save_run(
        Run(
            run=folder.id, cluster="n", mode="torchrun", script="x", args=(), nodes=(), master_addr="h",
            master_port=1, started_at="2026-01-01T00:00:00+00:00", uneven_files=UNEVEN,
        )
    )  # fmt: skip
    error = (
        None
        if reason is None
        else FirstError(rank=0, node="gpu-0", message="so", reason=reason, detail=MISSING)
    )
    hang = Hang(run=folder.id, verdict="hung", sentence="The run hung: so.") if hung else None
    result = Result(
        run=folder.id, cluster="n", mode="torchrun", script="x", status="failed", exit_code=1, nnodes=2,
        nproc_per_node=1, world_size=2, started_at="2026-01-01T00:00:00+00:00", ended_at=None, seconds=Seconds(),
        train=TrainSummary(), ranks=(), first_error=error, cost_usd=None, dir=str(folder.path), hang=hang,
    )  # fmt: skip
    assert advice_on(result) == (f"The nodes' files differed: {UNEVEN}." if advised else "")
