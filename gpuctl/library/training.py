"""A run to its end, for the library and for the command line: the one place from which `train` is called."""

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
    """Run what is asked for, and return its result. Raises Interrupted with the result after Ctrl-C.

    `on_end` gets the job before machines that were started for it are ended, which may take minutes.
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
        why = f"Run {job.result.run} was interrupted: it is {job.result.status}."
        raise Interrupted(why, result=job.result)
    return job.result
