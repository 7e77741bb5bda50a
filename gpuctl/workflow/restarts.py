"""`train`, with what comes before its run and after: the one it goes on from, and another where it has failed."""

from dataclasses import replace
from threading import Event

from gpuctl.errors import JobStopped, Usage
from gpuctl.options import App
from gpuctl.text import clean, plural
from gpuctl.workflow import resume
from gpuctl.workflow.checkpoints import Earlier
from gpuctl.workflow.elastic import Growth
from gpuctl.workflow.request import TrainRequest
from gpuctl.workflow.train import check_not_stopped, train
from inventories.errors import InventoryError
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
    from remote.errors import PreflightFailed, RemoteError

    request, earlier = resume.resolve(app, request)
    if request.detach and (request.max_restarts or request.elastic):
        option = "--max-restarts" if request.max_restarts else f"--nnodes {request.nodes_asked_for}"
        raise Usage(
            f"{option} needs gpuctl to stay: it is what starts the next run. Leave out --detach; a terminal "
            "multiplexer (tmux) keeps gpuctl going."
        )
    growth = _growth(app, request)
    result, interrupted = train(app, request, earlier, growth)
    before: tuple[Result, Earlier] | None = None
    restarts = vain_starts = 0
    without: frozenset[str] = frozenset()
    while not interrupted and vain_starts < STARTS:
        failed = f"run {result.run} failed ({what_failed(result)})"
        joining = growth.joining if growth and result.status in ("failed", "stopped") else ()
        lost = growth is not None and not joining and (growth.lost_one or blames_a_machine(result))
        why = f"{failed}; "
        if joining:
            names = ", ".join(machine.name for machine in joining)
            in_vain_before = growth is not None and growth.barred.issuperset(
                machine.name for machine in joining
            )
            why = f"going on without {names}: " if in_vain_before else f"{names} can take part, too: "
        elif result.status != "failed":
            break
        elif result.exit_code == WRONG_OPTIONS:
            app.output.say(
                f"{failed} and is not restarted: exit status {WRONG_OPTIONS} stands for wrong options, and another "
                "would be given the same. Put them right, then start it again."
            )
            break
        elif not lost and restarts == request.max_restarts:
            break
        elif not lost:
            restarts += 1
            why = f"restart {restarts} of {request.max_restarts}: {failed}; "
        try:
            check_not_stopped(app, result.run)
            if growth:
                Event().wait(PAUSE_S * vain_starts)
                growth.settle(app.output.say)
            left = resume.after_failure(app, result.run, growth.lost if growth else {})
            if growth and lost and not growth.lost_one and left.answering.issuperset(_took_part(result)):
                # The machine is there: what failed on it may fail again, without end.
                if restarts == request.max_restarts:
                    break
                restarts += 1
            if not joining and before is not None and in_vain(*before, result, left):
                app.output.say(
                    f"{failed} and is not restarted: run {before[0].run} had failed in the same way, and no newer "
                    "checkpoint was written since. Mend the cause, then start it again."
                )
                break
            there = left.answering - without - (growth.barred if growth else frozenset())
            if request.min_nodes and len(there) < request.min_nodes:
                app.output.say(_too_few(request, result.run, len(there)))
                break
            again = replace(request, answering=there)
            following, interrupted = train(app, again, replace(left, why=why), growth)
            before, result = (None if joining else (result, left)), following
            vain_starts, without = 0, frozenset()
        except KeyboardInterrupt:
            app.output.say(f"{why}interrupted before another began")
            return result, True
        except JobStopped as stopped:
            app.output.say(str(stopped))
            break
        except (RemoteError, InventoryError) as error:
            app.output.say(f"{why}another could not be started: {error}")
            if growth:
                vain_starts += 1
                if isinstance(error, RemoteError):
                    growth.bar(joining)
                if isinstance(error, PreflightFailed):
                    without |= error.nodes
    return result, interrupted


def _growth(app: App, request: TrainRequest) -> Growth | None:
    """What looks out for more machines; None where no more may take part."""
    if request.min_nodes is None or request.nnodes is None:
        return None
    folder = app.store.cluster(app.options.cluster)
    return Growth(folder, most=request.nnodes, python=request.python)


def blames_a_machine(result: Result) -> bool:
    """Whether a machine is what failed, not one of its ranks."""
    return result.first_error is not None and result.first_error.rank is None


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
    """The same rank or node, with the same words. Of ranks that fail together any may be the first."""
    then, error = before.first_error, now.first_error
    if then is None or error is None:
        return False
    if then.message.replace(before.run, now.run) != error.message:
        return False
    if error.rank is None:
        return (then.rank, then.node) == (error.rank, error.node)
    blamed = (error.rank, error.node, now.exit_code)
    return blamed in {(rank.rank, rank.node, rank.exit_code) for rank in before.ranks}


def what_failed(result: Result) -> str:
    """`rank 1 on gpu-1: exit status 3: boom`."""
    error = result.first_error
    if error is None:
        return "for no known reason"
    who = error.node if error.rank is None else f"rank {error.rank} on {error.node}"
    return f"{who}: {clean(error.message, 200)}"
