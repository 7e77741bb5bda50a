"""One run of a job, before a node is asked."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuctl.library.options import train_request
from gpuctl.workflow.jobs.job import Job, Restart
from gpuctl.workflow.jobs.train import _Start


@pytest.mark.parametrize(
    ("fresh", "step", "expected"),
    [(True, None, True), (True, Restart(why="", number=1), False), (False, None, False)],
)
def test_only_the_first_run_of_a_job_begins_afresh(fresh: bool, step: Restart | None, expected: bool) -> None:
    request = train_request(["my.py"], {"fresh": fresh})
    runs: Any = SimpleNamespace(request=request)
    launchable: Any = None
    start = _Start(runs=runs, job=Job(request=request), launchable=launchable, point=None, step=step)
    assert start.fresh is expected
