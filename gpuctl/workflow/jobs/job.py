"""A job: the runs that a `gpuctl train` starts in turn, the end of each, and the next step. Pure.

train ─▶ run ─▶ next_step ─▶ Done      it succeeded, or a person stopped it
          ▲         ├─────▶ GiveUp    another run would do no better
          │         ├─▶ Restart ─┐    it failed, and another may do better
          │         └─▶ Resize ──┤    it was stopped, as more machines can take part
          └──────────────────────┘
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from gpuctl.run_results.failures.failures import what_failed
from gpuctl.workflow.runs.outputs.checkpoints import ResumePoint
from gpuctl.workflow.runs.request.request import TrainRequest
from inventories.runs.end_reasons import Reason
from inventories.runs.records import NodeRecord
from inventories.runs.result import Result
from inventories.runs.run import Run, RunNode
from inventories.text import plural

WRONG_OPTIONS = 2
"""Exit status of a program for unknown options."""
MAX_FAILED_STARTS = 3
"""Maximum number of failed starts in a row of an elastic job's next run."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run of a job, and its end."""

    run: Run
    """Its nodes, the run that it resumed, and the checkpoints that it began with."""
    result: Result
    interrupted: bool = False
    """A person pressed Ctrl-C."""
    joining: tuple[str, ...] = ()
    """Machines for which it was stopped at a checkpoint: they can take part in the next."""
    lost: tuple[RunNode, ...] = ()
    """Its nodes that did not answer at its end. Their ranks may still run."""
    machines: int = 0
    """Number of its machines: for a Ray driver not only its own node."""
    machine_lost: bool = False
    """A machine was lost, or rebooted."""
    machine_failed: bool = False
    """A machine failed, not one of its ranks."""
    wrong_options: bool = False
    """The program does not know one of its options."""
    hung: bool = False
    """The run was stopped because it hung, and another is to follow."""
    left: ResumePoint | None = None
    """The checkpoints that it left. `None`: the machines were not asked."""

    @property
    def failure(self) -> str:
        """`run ID failed (rank 1 on gpu-1: exit status 3)`."""
        if self.hung:
            return f"run {self.result.run} hung and was stopped"
        return f"run {self.result.run} failed ({what_failed(self.result)})"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The record of a job: the request, its runs so far, and the failures between them."""

    request: TrainRequest
    attempts: tuple[Attempt, ...] = ()
    """Its runs that were launched, in order."""
    restarts: int = 0
    """Used part of `--max-restarts`, by runs and by failed starts."""
    failed_starts: int = 0
    """Of the next run of an elastic job, since the last attempt."""
    failed_with: frozenset[str] = frozenset()
    """Machines that prevented these starts."""
    barred: frozenset[str] = frozenset()
    """Ready machines with which an elastic job could not start: never tried again."""
    interrupted: bool = False
    """A person pressed Ctrl-C."""
    stopped: bool = False
    """A person stopped it between two runs."""
    does_not_fit: str = ""
    """Why its strategy can't divide the ranks of the remaining machines. Empty: it can."""
    hint: str = ""
    """Options with which the strategy could. Empty: no such options are known."""

    @property
    def last(self) -> Attempt:
        """Return the latest run."""
        return self.attempts[-1]

    @property
    def result(self) -> Result:
        """Return the result of the latest run."""
        return self.last.result

    @property
    def lost(self) -> dict[str, list[RunNode]]:
        """Return lost machine → its parts in the job's runs, which may still run there."""
        parts: dict[str, list[RunNode]] = {}
        for attempt in self.attempts:
            for part in attempt.lost:
                parts.setdefault(part.name, []).append(part)
        return parts

    @property
    def wanted_machines(self) -> int:
        """Return the desired number of machines of the next run: the last run's, or an elastic job's minimum."""
        return self.request.min_nodes or self.last.machines

    def with_left(self, left: ResumePoint) -> "Job":
        """Return the record with the checkpoints that the last run left."""
        return replace(self, attempts=(*self.attempts[:-1], replace(self.last, left=left)))

    def with_attempt(self, attempt: Attempt, step: "Restart | Resize | None" = None) -> "Job":
        """Return the record with one more run. `step`: the step that it follows; `None`: the job's first run."""
        return replace(
            self,
            attempts=(*self.attempts, attempt),
            interrupted=attempt.interrupted,
            restarts=self.restarts + _counts(step),
            failed_starts=0,
            failed_with=frozenset(),
        )

    def with_failed_start(self, step: "Restart | Resize", nodes: Collection[str], *, bar: bool) -> "Job":
        """Return the record with a failed start of the next run.

        `nodes`: machines that prevented it, as far as known. `bar`: the joining machines did.
        """
        asked_again = replace(self.last, left=None)
        used = replace(
            self, attempts=(*self.attempts[:-1], asked_again), restarts=self.restarts + _counts(step)
        )
        if not self.request.elastic:
            return used
        return replace(
            used,
            failed_starts=self.failed_starts + 1,
            failed_with=self.failed_with.union(nodes),
            barred=self.barred.union(self.last.joining if bar else ()),
        )


@dataclass(frozen=True, kw_only=True)
class Done:
    """No other run follows: the last one succeeded, is active, or was stopped by a person."""

    reason: str = ""
    """A sentence for people. Empty: no reason needed."""


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """No other run follows one that failed."""

    reason: str = ""
    """A sentence for people. Empty: no restart was requested, or all are used up."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Another run follows one that failed."""

    why: str
    """The beginning of its line."""
    number: int | None
    """Number of the restart, of `--max-restarts`. `None`: not counted, as an elastic job lost a machine."""
    machines: frozenset[str] = frozenset()
    """Names of the machines that can take part, once they were asked."""


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Another run follows one that was stopped, with the machines that can take part now."""

    why: str
    machines: frozenset[str] = frozenset()


Step: TypeAlias = Done | GiveUp | Restart | Resize


def _counts(step: Restart | Resize | None) -> bool:
    return isinstance(step, Restart) and step.number is not None


def stopped_line(run: Run) -> str:
    """Return the sentence for a job that a person stopped after this run."""
    return f"The job was stopped: no other run follows {run.run}."


def next_step(job: Job) -> Step:
    """Return the step after the job's last run.

    Before the machines were asked for checkpoints, Restart and Resize are provisional: call again afterwards. So no
    machine is contacted for a job that is over.
    """
    last, request = job.last, job.request
    if job.interrupted:
        return Done()
    if job.stopped:
        return Done(reason=stopped_line(last.run))
    if job.does_not_fit:
        other = f" On those that are there: gpuctl train --resume -- {job.hint}" if job.hint else ""
        return GiveUp(
            reason=f"No other run follows {last.run.run}, as too few machines can take part. {job.does_not_fit} Once "
            f"there are more: gpuctl train --resume.{other}"
        )
    step = _step_by_end(job)
    if last.left is None or isinstance(step, Done | GiveUp):
        return step
    if isinstance(step, Restart) and (before := _same_failure(job)) is not None:
        return GiveUp(
            reason=f"{last.failure} and is not restarted: run {before.run} had failed in the same way, and no newer "
            "checkpoint was written since. Mend the cause, then start it again."
        )
    usable = last.left.answering - job.failed_with - job.barred
    if request.min_nodes and len(usable) < request.min_nodes:
        return GiveUp(
            reason=f"No other run follows {last.run.run}: {plural(len(usable), 'machine')} can take part, and "
            f"--nnodes {request.nnodes_text} asks for {request.min_nodes} at least. Once there are more: "
            "gpuctl train --resume"
        )
    return replace(step, machines=usable)


def _step_by_end(job: Job) -> Step:
    """Return the next step from the end of the last run and the failed starts since."""
    last, request = job.last, job.request
    status = last.result.status
    if status != "failed" and not (status == "stopped" and (last.joining or last.hung)):
        return Done()
    if job.failed_starts >= MAX_FAILED_STARTS:
        return GiveUp()
    if last.joining:
        names = ", ".join(last.joining)
        barred = job.barred.issuperset(last.joining)
        return Resize(why=f"continuing without {names}: " if barred else f"{names} can take part, too: ")
    if last.wrong_options:
        refused = (
            f"{last.failure} and is not restarted: exit status {WRONG_OPTIONS} stands for wrong options, and "
            "another would be given the same. Put them right, then start it again."
        )
        return GiveUp(reason=refused if request.continues else "")
    took_part = {part.name for part in last.run.nodes}
    # The failed machine still exists: its failure may repeat without end.
    may_repeat = last.left is not None and not last.machine_lost and last.left.answering.issuperset(took_part)
    if request.elastic and last.machine_failed and not may_repeat:
        return Restart(why=f"{last.failure}; ", number=None)
    if job.restarts >= request.max_restarts:
        return GiveUp()
    number = job.restarts + 1
    return Restart(why=f"restart {number} of {request.max_restarts}: {last.failure}; ", number=number)


def _same_failure(job: Job) -> Result | None:
    """Return the run before the last one, if the last one failed in the same way and left no newer checkpoint.

    A run that was stopped for a resize does not count.
    """
    before, last = job.attempts[-2] if len(job.attempts) > 1 else None, job.last
    if before is None or before.joining or before.left is None or last.left is None:
        return None
    return before.result if repeats_failure(before.result, before.left, last.result, last.left) else None


def attempt_of(
    run: Run,
    result: Result,
    records: Mapping[str, NodeRecord],
    *,
    machines: int | None = None,
    joining: tuple[str, ...] = (),
    interrupted: bool = False,
    hung: bool = False,
) -> Attempt:
    """Return a run with the facts on its end that the next step depends on.

    `records`: its nodes' reports on the end. `machines`: their number; `None`: the nodes of its record.
    `joining`: machines for which it was stopped. `hung`: it was stopped because it hung, and another is to follow.
    """
    lost = {record.node for record in records.values() if record.lost}
    booted_again = (Reason.REBOOTED, Reason.CONTAINER_RESTARTED)
    machine_lost = bool(lost) or any(record.reason in booted_again for record in records.values())
    return Attempt(
        run=run,
        result=result,
        machines=len(run.nodes) if machines is None else machines,
        interrupted=interrupted,
        joining=joining,
        hung=hung,
        lost=tuple(part for part in run.nodes if part.name in lost),
        machine_lost=machine_lost,
        machine_failed=machine_lost or blames_a_machine(result),
        wrong_options=result.status == "failed" and result.exit_code == WRONG_OPTIONS,
    )


def blames_a_machine(result: Result) -> bool:
    """Return whether a machine is what failed, not one of its ranks."""
    error = result.first_error
    return error is not None and error.rank is None and not error.waited_for


def repeats_failure(before: Result, left_before: ResumePoint, now: Result, left: ResumePoint) -> bool:
    """Return whether a run failed as the one before it did, and is known to have left no newer checkpoint."""
    known = left.unknown is None or left.unknown.run != now.run
    if not known or left.checkpoints != left_before.checkpoints:
        return False
    # The same rank or node failed for the same reason. Of ranks that fail together any may be the first. Of ranks
    # that waited for a hung rank, chance decides which times out first, and with what message and status. So the
    # awaited ranks are compared.
    then, error = before.first_error, now.first_error
    if then is None or error is None or then.waited_for != error.waited_for:
        return False
    if error.waited_for:
        return not _may_have_hung(before).isdisjoint(_may_have_hung(now))
    if (then.reason, then.detail.replace(before.run, now.run)) != (error.reason, error.detail):
        return False
    if error.rank is None:
        return (then.rank, then.node, before.exit_code) == (error.rank, error.node, now.exit_code)
    blamed = (error.rank, error.node, now.exit_code)
    return blamed in {(rank.rank, rank.node, rank.exit_code) for rank in before.ranks}


def _may_have_hung(result: Result) -> frozenset[tuple[int, str]]:
    """Return the ranks that others waited for, with their nodes; all ranks if the awaited ones are not known."""
    named = result.first_error.ranks if result.first_error else ()
    return frozenset((rank.rank, rank.node) for rank in result.ranks if not named or rank.rank in named)
