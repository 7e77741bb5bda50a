"""`train`, with what comes before its run and after: the one it goes on from, and another where it has failed."""

from dataclasses import replace

from gpuctl.errors import Usage
from gpuctl.options import App
from gpuctl.text import clean
from gpuctl.workflow import resume
from gpuctl.workflow.request import TrainRequest
from gpuctl.workflow.train import train
from inventories.errors import InventoryError
from inventories.run import Result


def train_to_the_end(app: App, request: TrainRequest) -> tuple[Result, bool]:
    """A run, and up to `max_restarts` more, each on the machines that answer and from the last checkpoints.

    A run is followed by another only where it failed by itself, never where a person ended it. Returns the last one's
    result, and whether a person interrupted.
    """
    from remote.errors import RemoteError

    if request.max_restarts and request.detach:
        raise Usage(
            "--max-restarts needs gpuctl to stay: it is what starts the next run. Leave out --detach; a terminal "
            "multiplexer (tmux) keeps gpuctl going."
        )
    request, earlier = resume.resolve(app, request)
    result, interrupted = train(app, request, earlier)
    for number in range(1, request.max_restarts + 1):
        if interrupted or result.status != "failed":
            break
        why = f"restart {number} of {request.max_restarts}: run {result.run} failed ({what_failed(result)}); "
        try:
            earlier = replace(resume.after_failure(app, result.run), why=why)
            again = replace(request, answering=earlier.answering)
            result, interrupted = train(app, again, earlier)
        except KeyboardInterrupt:
            app.output.say(f"{why}interrupted before another began")
            return result, True
        except (RemoteError, InventoryError) as error:
            app.output.say(f"{why}another could not be started: {error}")
    return result, interrupted


def what_failed(result: Result) -> str:
    """`rank 1 on gpu-1: exit status 3: boom`."""
    error = result.first_error
    if error is None:
        return "for no known reason"
    who = error.node if error.rank is None else f"rank {error.rank} on {error.node}"
    return f"{who}: {clean(error.message, 200)}"
