"""A run that failed as a node was lost: what is said of it once that node is back."""

from dataclasses import replace

from gpuctl.workflow.training.collect import failed_as_before
from inventories.ended import Reason
from inventories.run import FirstError, Result, Seconds, TrainSummary

LOST = Result(
    run="20261121-054625-3fa9",
    cluster="default",
    mode="torchrun",
    script="my.py",
    status="failed",
    exit_code=None,
    nnodes=2,
    nproc_per_node=1,
    world_size=2,
    started_at="2026-11-21T05:46:25+00:00",
    ended_at="2026-11-21T05:46:41+00:00",
    seconds=Seconds(),
    train=TrainSummary(),
    ranks=(),
    first_error=FirstError(rank=None, node="gpu-1", message="lost", reason=Reason.NODE_LOST),
    cost_usd=0.0,
    dir="/home/me/.gpuctl/runs/20261121-054625-3fa9",
    reason=Reason.NODE_LOST,
)
STOPPED = replace(LOST, status="stopped", first_error=None, reason=Reason.STOPPED)


def test_failed_as_before_keeps_failure_of_lost_node() -> None:
    assert failed_as_before(LOST, STOPPED) == LOST


def test_failed_as_before_keeps_stopped_and_succeeded_results() -> None:
    assert failed_as_before(None, STOPPED) == STOPPED
    assert failed_as_before(STOPPED, STOPPED) == STOPPED
    well = replace(STOPPED, status="succeeded", exit_code=0, reason=None)
    assert failed_as_before(LOST, well) == well
