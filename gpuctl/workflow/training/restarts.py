"""`train`, with what comes before its run and after: the one it goes on from, and another where it has failed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Event

from gpuctl.errors import JobStopped, Usage
from gpuctl.options import App
from gpuctl.text import clean, plural
from gpuctl.workflow.training import resume
from gpuctl.workflow.training.checkpoints import Earlier
from gpuctl.workflow.training.elastic import Growth
from gpuctl.workflow.training.request import TrainRequest
from gpuctl.workflow.training.train import check_not_stopped, train
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.run import Result

WRONG_OPTIONS = 2
"""The exit status of a program that was given what it can't be given."""
STARTS = 3
"""So often in a row it is tried to start the next of an elastic job's runs."""
PAUSE_S = 10.0
"""Before the second of these tries; twice as long before the third."""


def train_to_the_end(app: App, request: TrainRequest) -> tuple[Result, bool]:
    """A run, and those that follow it, each on the machines that answer and from the last checkpoints.

    A run is followed by another where it failed by itself, never where a person ended it, and only where the next
    one may do better: up to `max_restarts` times, and where it is elastic and lost a machine any number of times. One
    that was stopped as more machines can take part is followed by one on all of them. Returns the last one's result,
    and whether a person interrupted.
    """
    request, earlier = resume.resolve(app, request)
    if request.detach and (request.max_restarts or request.elastic):
        option = "--max-restarts" if request.max_restarts else f"--nnodes {request.nodes_asked_for}"
        raise Usage(
            f"{option} needs gpuctl to stay: it is what starts the next run. Leave out --detach; a terminal "
            "multiplexer (tmux) keeps gpuctl going."
        )
    growth = _lookout(app, request)
    result, interrupted = train(app, request, earlier, growth)
    job = _Job(app, request, growth)
    while not interrupted and job.vain_starts < STARTS:
        end = _end_of(result, growth)
        why = job.why_another(end)
        following = None if why is None else job.another(end, why)
        if following is None:
            break
        result, interrupted = following
    return result, interrupted


@dataclass(frozen=True, kw_only=True)
class _End:
    """How a run ended, as far as what follows depends on it."""

    result: Result
    joining: Sequence[Machine]
    """Machines for which it was ended."""
    lost: bool
    """Whether an elastic run failed by a machine, not by one of its ranks."""

    @property
    def failed(self) -> str:
        """`run ID failed (…)`."""
        return f"run {self.result.run} failed ({what_failed(self.result)})"


def _end_of(result: Result, growth: Growth | None) -> _End:
    if growth is None:
        return _End(result=result, joining=(), lost=False)
    joining = growth.joining if result.status in ("failed", "stopped") else ()
    return _End(
        result=result,
        joining=joining,
        lost=not joining and (growth.lost_one or blames_a_machine(result)),
    )


class _Job:
    """A job's runs from the second on: why there is another, and with which machines."""

    def __init__(self, app: App, request: TrainRequest, growth: Growth | None) -> None:
        self._app = app
        self._request = request
        self._growth = growth
        self._restarts = 0
        self.vain_starts = 0
        """Starts of the next run that failed since the last that did not."""
        self._without: frozenset[str] = frozenset()
        """Names of the machines with which they failed."""
        self._before: tuple[Result, Earlier] | None = None
        """The run that the last one was a restart of, and what that one had left."""

    def why_another(self, end: _End) -> str | None:
        """Why another run follows, as the beginning of a sentence; None: none does. Restarts are counted."""
        if end.joining:
            joining = {machine.name: machine for machine in end.joining}
            barred = self._growth is not None and self._growth.barred.issuperset(joining)
            names = ", ".join(joining)
            return f"going on without {names}: " if barred else f"{names} can take part, too: "
        if end.result.status != "failed":
            return None
        if end.result.exit_code == WRONG_OPTIONS:
            if self._request.max_restarts or self._request.elastic:
                self._app.output.say(
                    f"{end.failed} and is not restarted: exit status {WRONG_OPTIONS} stands for wrong options, and "
                    "another would be given the same. Put them right, then start it again."
                )
            return None
        if end.lost:
            return f"{end.failed}; "
        if not self._count_restart():
            return None
        return f"restart {self._restarts} of {self._request.max_restarts}: {end.failed}; "

    def another(self, end: _End, why: str) -> tuple[Result, bool] | None:
        """Another run: its result, and whether a person interrupted it. None: there is none after all.

        Where it can't be started the result is still that of the run before it.
        """
        from remote.errors import RemoteError

        try:
            found = self._what_is_left(end)
            if found is None:
                return None
            left, there = found
            again = replace(self._request, answering=there)
            following, interrupted = train(self._app, again, replace(left, why=why), self._growth)
        except KeyboardInterrupt:
            self._app.output.say(f"{why}interrupted before another began")
            return end.result, True
        except JobStopped as stopped:
            self._app.output.say(str(stopped))
            return None
        except (RemoteError, InventoryError) as error:
            self._app.output.say(f"{why}another could not be started: {error}")
            self._remember(error, end)
            return end.result, False
        self._before = None if end.joining else (end.result, left)
        self.vain_starts, self._without = 0, frozenset()
        return following, interrupted

    def _count_restart(self) -> bool:
        """Count one more restart; False where as many as were asked for have been."""
        if self._restarts == self._request.max_restarts:
            return False
        self._restarts += 1
        return True

    def _what_is_left(self, end: _End) -> tuple[Earlier, frozenset[str]] | None:
        """What the next run goes on from, and the machines that can take part. None: it would do no better.

        Raises JobStopped, RemoteError, InventoryError.
        """
        result, growth = end.result, self._growth
        check_not_stopped(self._app, result.run)
        if growth is not None:
            Event().wait(PAUSE_S * self.vain_starts)
            growth.settle(self._app.output.say)
        left = resume.after_failure(self._app, result.run, growth.lost if growth else {})
        answered_all = left.answering.issuperset(_took_part(result))
        # Where the machine is there, what failed on it may fail again, without end.
        still_there = growth is not None and end.lost and not growth.lost_one and answered_all
        if still_there and not self._count_restart():
            return None
        if not end.joining and self._before is not None and in_vain(*self._before, result, left):
            self._app.output.say(
                f"{end.failed} and is not restarted: run {self._before[0].run} had failed in the same way, and no "
                "newer checkpoint was written since. Mend the cause, then start it again."
            )
            return None
        there = left.answering - self._without - (growth.barred if growth else frozenset())
        if self._request.min_nodes and len(there) < self._request.min_nodes:
            self._app.output.say(_too_few(self._request, result.run, len(there)))
            return None
        return left, there

    def _remember(self, error: Exception, end: _End) -> None:
        """Have the next try leave out what this one failed with."""
        from remote.errors import PreflightFailed, RemoteError

        if self._growth is None:
            return
        self.vain_starts += 1
        if isinstance(error, RemoteError):
            self._growth.bar(end.joining)
        if isinstance(error, PreflightFailed):
            self._without |= error.nodes


def _lookout(app: App, request: TrainRequest) -> Growth | None:
    """What looks out for more machines; None where no more may take part."""
    if request.min_nodes is None or request.nnodes is None:
        return None
    folder = app.store.cluster(app.options.cluster)
    return Growth(folder, most=request.nnodes, python=request.python)


def blames_a_machine(result: Result) -> bool:
    """Whether a machine is what failed, not one of its ranks."""
    error = result.first_error
    return error is not None and error.rank is None and not error.waited_for


def _took_part(result: Result) -> frozenset[str]:
    """Names of the run's machines."""
    return frozenset(rank.node for rank in result.ranks)


def _too_few(request: TrainRequest, run: str, there: int) -> str:
    """The sentence for an elastic job with too few machines to go on."""
    return (
        f"No other run follows {run}: {plural(there, 'machine')} can take part, and --nnodes "
        f"{request.nodes_asked_for} asks for {request.min_nodes} at least. Once there are more: gpuctl train --resume"
    )


def in_vain(before: Result, left_before: Earlier, now: Result, left: Earlier) -> bool:
    """Whether a run failed as the one before it did, and is known to have left no newer checkpoint than that one."""
    known = left.unknown is None or left.unknown.run != now.run
    return known and left.found == left_before.found and _failed_alike(before, now)


def _failed_alike(before: Result, now: Result) -> bool:
    """The same rank or node, for the same reason. Of ranks that fail together any may be the first.

    Of ranks that waited in vain it is chance which of them gives up first, what it says, and how it ends: there it is
    for whom they waited that counts.
    """
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
    """The ranks that others waited for in vain, with their nodes; all of them where it is not known which."""
    named = result.first_error.ranks if result.first_error else ()
    return frozenset((rank.rank, rank.node) for rank in result.ranks if not named or rank.rank in named)


def what_failed(result: Result) -> str:
    """`rank 1 on gpu-1: exit status 3: boom`."""
    error = result.first_error
    if error is None:
        return "for no known reason"
    who = error.node if error.rank is None else f"rank {error.rank} on {error.node}"
    return ": ".join(filter(None, [who, clean(error.message, 200)]))
