"""The call of `train` to the end of the run, for the library and for the command line."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gpuctl.errors import Interrupted

if TYPE_CHECKING:
    from gpuctl.app import App
    from gpuctl.workflow.jobs.job import Job
    from gpuctl.workflow.runs.request.request import TrainRequest
    from inventories.runs.run import Result


def train(
    app: "App", request: "TrainRequest", *, on_end: "Callable[[Job], None]" = lambda _: None
) -> "Result":
    """Run a request, and return its result. Raises Interrupted with the result after Ctrl-C.

    `on_end` gets the job before gpuctl terminates machines that it started for the job, which may take minutes.
    """
    from gpuctl.workflow.jobs import train as workflow
    from gpuctl.workflow.jobs.run_machines import run_machines
    from gpuctl.workflow.runs.request.project import check_files
    from gpuctl.workflow.runs.request.request import check_detach

    check_detach(request)
    check = partial(check_files, app, request)
    with run_machines(
        app, "train", nnodes=request.nnodes, min_nodes=request.min_nodes, check=check
    ) as hand_over:
        job = workflow.train(app, request)
        hand_over(job.result)
        on_end(job)
    if job.interrupted:
        sentence = f"Run {job.result.run} was interrupted: it is {job.result.status}."
        raise Interrupted(sentence, result=job.result)
    return job.result
