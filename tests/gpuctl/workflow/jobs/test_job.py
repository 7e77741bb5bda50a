"""The step after a run of a job: a table of requests, ends of runs, and machines that answer."""

from dataclasses import replace

import pytest
from support import a_result, a_run

from gpuctl.run_results.failures.failures import what_failed
from gpuctl.workflow.jobs.job import (
    Attempt,
    Done,
    GiveUp,
    Job,
    Resize,
    Restart,
    Step,
    attempt_of,
    blames_a_machine,
    next_step,
    repeats_failure,
)
from gpuctl.workflow.runs.outputs.checkpoints import ResumePoint
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.runs.end_reasons import Ended, Reason
from inventories.runs.records import NodeRecord
from inventories.runs.result import FirstError, RankResult, Result, RunStatus, Seconds
from inventories.runs.run import Checkpoints, RunNode

NODES = tuple(
    RunNode(name=f"gpu-{rank}", rank=rank, nproc=1, first_rank=rank, run_dir="/home/me/run")
    for rank in range(3)
)
RUN = a_run(nodes=NODES)
NEXT = replace(RUN, run="20261121-060000-0000", resumed_from=RUN.run)
SOME = Checkpoints(files=2, bytes=10, newest="step-000040.pt", written_ns=1)


def error(rank: int | None, node: str, message: str) -> FirstError:
    """A rank's own error, or the loss of a node."""
    reason = Reason.NODE_LOST if rank is None else Reason.EXIT_CODE
    return FirstError(rank=rank, node=node, message=message, reason=reason, detail=message)


FAILED = a_result(run=RUN.run, status="failed", exit_code=3, started_at="", ended_at=None, seconds=Seconds(), ranks=(
        RankResult(rank=0, local_rank=0, node="gpu-0", exit_code=3),
        RankResult(rank=1, local_rank=0, node="gpu-1", exit_code=3),
        RankResult(rank=2, local_rank=0, node="gpu-2", exit_code=-15),
    ), first_error=error(1, "gpu-1", f"boom in runs/{RUN.run}"), cost_usd=None, dir="/")  # fmt: skip
LOST = replace(FAILED, exit_code=None, first_error=error(None, "gpu-1", "lost"))


def test_what_failed_describes_failure_in_one_line() -> None:
    assert what_failed(FAILED) == f"rank 1 on gpu-1: boom in runs/{RUN.run}"
    assert what_failed(LOST) == "gpu-1: lost"
    assert what_failed(hung(0, 2)) == "rank 1 waited in vain"
    assert what_failed(replace(FAILED, first_error=None)) == "for no known reason"


def hung(*ranks: int, run: str = RUN.run, gave_up: int = 1, code: int = 1) -> Result:
    """Return FAILED as a rank left it that timed out waiting for these ranks."""
    single = len(ranks) == 1
    error = FirstError(
        rank=ranks[0] if single else None,
        node=f"gpu-{ranks[0]}" if single else None,
        message=f"rank {gave_up} waited in vain",
        reason=Reason.HUNG,
        ranks=ranks,
    )
    return replace(FAILED, run=run, exit_code=code, first_error=error)


def test_blames_a_machine_is_true_for_lost_machine_only() -> None:
    assert blames_a_machine(LOST)
    assert not blames_a_machine(FAILED)
    assert not blames_a_machine(replace(FAILED, first_error=None))
    assert not blames_a_machine(hung(0, 2)), "it is not known which rank, and no machine failed"


def again(result: Result, rank: int | None, node: str, message: str) -> Result:
    """The next run, which failed like this."""
    return replace(result, run=NEXT.run, first_error=error(rank, node, message))


BOOM = f"boom in runs/{NEXT.run}"
ELSEWHERE = tuple(replace(rank, node=f"other-{rank.rank}") for rank in FAILED.ranks)


@pytest.mark.parametrize(
    ("before", "now", "vain"),
    [
        (FAILED, again(FAILED, 1, "gpu-1", BOOM), True),
        (FAILED, again(FAILED, 0, "gpu-0", BOOM), True),
        (FAILED, again(FAILED, 1, "gpu-1", "another"), False),
        (FAILED, again(FAILED, 1, "gpu-3", BOOM), False),
        (FAILED, again(FAILED, 2, "gpu-2", BOOM), False),
        (FAILED, replace(again(FAILED, 0, "gpu-0", BOOM), first_error=None), False),
        (replace(FAILED, first_error=None), replace(FAILED, run=NEXT.run, first_error=None), False),
        (LOST, again(LOST, None, "gpu-1", "lost"), True),
        (LOST, again(LOST, None, "gpu-0", "lost"), False),
        (LOST, again(LOST, 1, "gpu-1", "lost"), False),
        # Chance decides which rank times out first, with what message and status, but not which rank hangs.
        (hung(2), hung(2, run=NEXT.run), True),
        (hung(2), hung(2, run=NEXT.run, gave_up=0, code=134), True),
        (hung(0, 2), hung(1, 2, run=NEXT.run, gave_up=0), True),
        (hung(), hung(2, run=NEXT.run), True),
        (hung(), hung(run=NEXT.run), True),
        (hung(0), hung(2, run=NEXT.run), False),
        (hung(1), again(FAILED, 1, "gpu-1", BOOM), False),
        (FAILED, hung(1, run=NEXT.run), False),
        (hung(2), replace(hung(2, run=NEXT.run), ranks=ELSEWHERE), False),
    ],
)
def test_in_vain_detects_same_failure_without_new_checkpoint(before: Result, now: Result, vain: bool) -> None:
    left = ResumePoint(run=NEXT, source=RUN, checkpoints=SOME)
    assert repeats_failure(before, left, now, left) is vain
    assert (
        repeats_failure(before, replace(left, checkpoints=None), now, replace(left, checkpoints=None)) is vain
    )
    for newer in (replace(SOME, newest="step-000050.pt"), replace(SOME, written_ns=2)):
        assert not repeats_failure(before, left, now, replace(left, checkpoints=newer))
    assert not repeats_failure(before, left, now, replace(left, unknown=NEXT)), "it may have left newer ones"
    assert repeats_failure(before, left, now, replace(left, unknown=RUN)) is vain


ALL = frozenset({"gpu-0", "gpu-1", "gpu-2"})
ELASTIC = TrainRequest(nnodes=3, min_nodes=2)
ONCE, TWICE = TrainRequest(max_restarts=1), TrainRequest(max_restarts=2)


def left(*answering: str, newest: str = SOME.newest) -> ResumePoint:
    """Return the resume point of a run if these machines answer; by default all answer."""
    checkpoints = replace(SOME, newest=newest)
    return ResumePoint(run=RUN, source=RUN, checkpoints=checkpoints, answering=frozenset(answering) or ALL)


DELETED = {
    "gpu-1": NodeRecord(
        node="gpu-1", launcher="torchrun", ended=Ended(reason=Reason.NODE_LOST, detail="timed out"), lost=True
    )
}


def ended(
    result: Result = FAILED,
    *,
    status: RunStatus = "failed",
    exit_code: int | None = 3,
    joining: tuple[str, ...] = (),
    lost: bool = False,
    point: ResumePoint | None = None,
) -> Attempt:
    """A run that ended like this."""
    outcome = replace(result, status=status, exit_code=exit_code)
    return replace(attempt_of(RUN, outcome, DELETED if lost else {}, joining=joining), left=point)


GOOD = ended(replace(FAILED, first_error=None), status="succeeded", exit_code=0)
GREW = ended(status="stopped", exit_code=None, joining=("gpu-2",), point=left())
LOST_ONE = ended(LOST, lost=True)
SAME = replace(attempt_of(NEXT, again(FAILED, 1, "gpu-1", BOOM), {}), left=left())


def job(request: TrainRequest, *attempts: Attempt, **more: object) -> Job:
    return Job(request=request, attempts=attempts, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "step"),
    [
        (job(TWICE, GOOD), Done()),
        (job(TWICE, ended(status="running", exit_code=None)), Done()),
        (job(TWICE, ended(status="stopped")), Done()),
        (job(TWICE, ended(), interrupted=True), Done()),
        (
            job(TWICE, ended(), stopped=True),
            Done(reason=f"The job was stopped: no other run follows {RUN.run}."),
        ),
        (job(TrainRequest(), ended()), GiveUp()),
        (job(TWICE, ended(), restarts=2), GiveUp()),
        (job(TrainRequest(), ended(exit_code=2)), GiveUp()),
    ],
)
def test_next_step_ends_job_without_another_run(record: Job, step: Step) -> None:
    assert next_step(record) == step


FAILURE = f"run {RUN.run} failed (rank 1 on gpu-1: boom in runs/{RUN.run}); "
LOSS = f"run {RUN.run} failed (gpu-1: lost); "


@pytest.mark.parametrize(
    ("record", "step"),
    [
        (job(TWICE, ended()), Restart(why=f"restart 1 of 2: {FAILURE}", number=1)),
        (job(TWICE, ended(), restarts=1), Restart(why=f"restart 2 of 2: {FAILURE}", number=2)),
        (job(ONCE, LOST_ONE), Restart(why=f"restart 1 of 1: {LOSS}", number=1)),
        # An elastic job that lost a machine restarts any number of times; one of whose ranks failed does not.
        (job(ELASTIC, LOST_ONE), Restart(why=LOSS, number=None)),
        (job(ELASTIC, ended(LOST)), Restart(why=LOSS, number=None)),
        (job(ELASTIC, ended()), GiveUp()),
        (job(replace(ELASTIC, max_restarts=1), ended()), Restart(why=f"restart 1 of 1: {FAILURE}", number=1)),
        (job(ELASTIC, replace(GREW, left=None)), Resize(why="gpu-2 can take part, too: ")),
        (
            job(ELASTIC, replace(GREW, left=None), barred=frozenset({"gpu-2"}), failed_starts=1),
            Resize(why="continuing without gpu-2: "),
        ),
        (job(ELASTIC, replace(GREW, left=None), failed_starts=3), GiveUp()),
        (job(ELASTIC, LOST_ONE, failed_starts=2), Restart(why=LOSS, number=None)),
        (job(ELASTIC, LOST_ONE, failed_starts=3), GiveUp()),
    ],
)
def test_next_step_is_restart_or_resize_after_failure(record: Job, step: Step) -> None:
    assert next_step(record) == step


@pytest.mark.parametrize(
    ("record", "number", "machines"),
    [
        (job(ONCE, ended(point=left())), 1, ALL),
        (job(ONCE, ended(LOST, lost=True, point=left("gpu-0"))), 1, {"gpu-0"}),
        (
            job(ELASTIC, ended(LOST, lost=True, point=left("gpu-0", "gpu-2"))),
            None,
            {"gpu-0", "gpu-2"},
        ),
        # The machine that failed is there: what failed on it may fail again, so it is counted.
        (job(replace(ELASTIC, max_restarts=1), ended(LOST, point=left())), 1, ALL),
        (job(ELASTIC, ended(LOST, lost=True, point=left()), failed_with=frozenset({"gpu-1"})), None, ALL - {"gpu-1"}),
        (job(ELASTIC, ended(LOST, lost=True, point=left()), barred=frozenset({"gpu-2"})), None, ALL - {"gpu-2"}),
    ],
)  # fmt: skip
def test_next_step_uses_machines_that_answer(
    record: Job, number: int | None, machines: frozenset[str]
) -> None:
    step = next_step(record)
    assert isinstance(step, Restart)
    assert (step.number, step.machines) == (number, machines)


def test_next_step_is_restart_after_a_run_that_was_stopped_as_it_hung() -> None:
    hung = replace(ended(replace(FAILED, first_error=None), status="stopped", exit_code=None), hung=True)
    step = next_step(job(TWICE, hung))
    assert step == Restart(why=f"restart 1 of 2: run {RUN.run} hung and was stopped; ", number=1)
    assert next_step(job(TWICE, hung, restarts=2)) == GiveUp()


def test_next_step_gives_up_if_failed_machine_is_there_and_no_restart_is_left() -> None:
    assert next_step(job(ELASTIC, ended(LOST, point=left()))) == GiveUp()


def test_next_step_gives_up_with_too_few_machines() -> None:
    step = next_step(job(ELASTIC, ended(LOST, lost=True, point=left("gpu-0"))))
    assert step == GiveUp(
        reason=f"No other run follows {RUN.run}: 1 machine can take part, and --nnodes 2:3 asks for 2 at least. Once "
        "there are more: gpuctl train --resume"
    )


def test_next_step_gives_up_where_the_strategy_does_not_fit_the_machines_that_are_left() -> None:
    why = "1 rank can't be divided by pp 2: start 2."
    reason = f"No other run follows {RUN.run}, as too few machines can take part. {why} Once there are more: "
    step = next_step(job(ELASTIC, LOST_ONE, does_not_fit=why, hint="--strategy fsdp"))
    assert step == GiveUp(
        reason=f"{reason}gpuctl train --resume. On those that are there: gpuctl train --resume -- --strategy fsdp"
    )
    assert next_step(job(ELASTIC, LOST_ONE, does_not_fit=why)) == GiveUp(
        reason=f"{reason}gpuctl train --resume."
    )


def test_next_step_gives_up_after_wrong_options() -> None:
    for request in (ONCE, ELASTIC):
        step = next_step(job(request, ended(exit_code=2)))
        assert isinstance(step, GiveUp)
        assert "is not restarted: exit status 2 stands for wrong options" in step.reason


def test_next_step_gives_up_after_same_failure_without_newer_checkpoint() -> None:
    before = ended(point=left())
    step = next_step(job(TWICE, before, SAME, restarts=1))
    assert isinstance(step, GiveUp)
    assert (
        f"run {RUN.run} had failed in the same way, and no newer checkpoint was written since" in step.reason
    )
    newer = replace(SAME, left=left(newest="step-000050.pt"))
    assert isinstance(next_step(job(TWICE, before, newer, restarts=1)), Restart)
    # A run that was stopped to be resized did not fail, and one whose machines were not asked is not known.
    for other in (replace(before, joining=("gpu-2",)), replace(before, left=None)):
        assert isinstance(next_step(job(TWICE, other, SAME, restarts=1)), Restart)


def test_with_attempt_counts_restart_and_forgets_failed_starts() -> None:
    record = job(
        TWICE, ended(), failed_starts=2, failed_with=frozenset({"gpu-1"}), barred=frozenset({"gpu-2"})
    )
    after = record.with_attempt(SAME, Restart(why="", number=1))
    assert (after.restarts, after.failed_starts, after.failed_with) == (1, 0, frozenset())
    assert (after.barred, after.last, len(after.attempts)) == ({"gpu-2"}, SAME, 2)
    assert record.with_attempt(SAME, Restart(why="", number=None)).restarts == 0
    assert record.with_attempt(replace(SAME, interrupted=True), Resize(why="")).interrupted


def test_with_failed_start_bars_joining_machines_of_elastic_jobs_only() -> None:
    resize = Resize(why="")
    after = job(ELASTIC, GREW).with_failed_start(resize, {"gpu-1"}, bar=True)
    assert (after.failed_starts, after.failed_with, after.barred) == (1, {"gpu-1"}, {"gpu-2"})
    assert after.last.left is None, "the machines are asked again"
    again = after.with_failed_start(resize, {"gpu-0"}, bar=False)
    assert (again.failed_starts, again.failed_with, again.barred) == (2, {"gpu-0", "gpu-1"}, {"gpu-2"})
    fixed = job(TWICE, ended()).with_failed_start(Restart(why="", number=1), {"gpu-1"}, bar=True)
    assert (fixed.restarts, fixed.failed_starts, fixed.failed_with, fixed.barred) == (1, 0, set(), set())


def test_attempt_of_collects_lost_nodes_of_all_runs() -> None:
    rebooted = NodeRecord(node="gpu-1", launcher="torchrun", ended=Ended(reason=Reason.REBOOTED))
    record = NodeRecord(node="gpu-0", launcher="torchrun", exit_code=1)
    first = attempt_of(RUN, LOST, {"gpu-0": record, **DELETED})
    second = attempt_of(NEXT, LOST, DELETED)
    third = attempt_of(NEXT, LOST, {"gpu-0": record, "gpu-1": rebooted})
    assert [attempt.machine_lost for attempt in (first, second, third)] == [True, True, True]
    assert not attempt_of(RUN, FAILED, {"gpu-0": record}).machine_lost
    assert job(ELASTIC, first, second, third).lost == {"gpu-1": [NODES[1], NODES[1]]}


def test_next_run_should_have_as_many_machines_and_of_an_elastic_job_its_least() -> None:
    lost = attempt_of(RUN, LOST, DELETED)
    assert job(TWICE, attempt_of(RUN, LOST, DELETED, machines=4)).wanted_machines == 4, "a Ray driver's"
    assert (job(TWICE, lost).wanted_machines, job(ELASTIC, lost).wanted_machines) == (3, 2)
