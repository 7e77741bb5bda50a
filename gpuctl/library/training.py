"""A run to its end, for the library and for the command line: the one place from which `train` is called."""

from typing import TYPE_CHECKING

from gpuctl.errors import Interrupted

if TYPE_CHECKING:
    from gpuctl.options import App
    from gpuctl.workflow.training.request import TrainRequest
    from inventories.run import Result


def train(app: "App", request: "TrainRequest") -> "Result":
    """Run what is asked for, and return its result. Raises Interrupted with the result after Ctrl-C."""
    from gpuctl.workflow.training import train as workflow

    job = workflow.train(app, request)
    if job.interrupted:
        why = f"Run {job.result.run} was interrupted: it is {job.result.status}."
        raise Interrupted(why, result=job.result)
    return job.result
