"""`train`, with what comes before its run and after: the one it goes on from, and another where it has failed."""

from dataclasses import replace

from gpuctl.errors import Usage
from gpuctl.options import App
from gpuctl.text import clean
from gpuctl.workflow import resume
from gpuctl.workflow.checkpoints import Earlier
from gpuctl.workflow.request import TrainRequest
from gpuctl.workflow.train import train
from inventories.errors import InventoryError
from inventories.run import Result

WRONG_OPTIONS = 2
"""The exit status of a program that was given what it can't be given."""


def train_to_the_end(app: App, request: TrainRequest) -> tuple[Result, bool]:
    """A run, and up to `max_restarts` more, each on the machines that answer and from the last checkpoints.

    A run is followed by another only where it failed by itself, never where a person ended it, and only where the
    next one may do better. Returns the last one's result, and whether a person interrupted.
    """
    from remote.errors import RemoteError

    if request.max_restarts and request.detach:
        raise Usage(
            "--max-restarts needs gpuctl to stay: it is what starts the next run. Leave out --detach; a terminal "
            "multiplexer (tmux) keeps gpuctl going."
        )
    request, earlier = resume.resolve(app, request)
    result, interrupted = train(app, request, earlier)
    before: tuple[Result, Earlier] | None = None
    for number in range(1, request.max_restarts + 1):
        if interrupted or result.status != "failed":
            break
        failed = f"run {result.run} failed ({what_failed(result)})"
        if result.exit_code == WRONG_OPTIONS:
            app.output.say(
                f"{failed} and is not restarted: exit status {WRONG_OPTIONS} stands for wrong options, and another "
                "would be given the same. Put them right, then start it again."
            )
            break
        why = f"restart {number} of {request.max_restarts}: {failed}; "
        try:
            left = resume.after_failure(app, result.run)
            if before is not None and in_vain(*before, result, left):
                app.output.say(
                    f"{failed} and is not restarted: run {before[0].run} had failed in the same way, and no newer "
                    "checkpoint was written since. Mend the cause, then start it again."
                )
                break
            again = replace(request, answering=left.answering)
            following, interrupted = train(app, again, replace(left, why=why))
            before, result = (result, left), following
        except KeyboardInterrupt:
            app.output.say(f"{why}interrupted before another began")
            return result, True
        except (RemoteError, InventoryError) as error:
            app.output.say(f"{why}another could not be started: {error}")
    return result, interrupted


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
