"""A launcher is one module and one line: one that gpuctl does not know runs jobs as torchrun and Ray do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import IMPORTS
from forks import forks_of
from support import Gpuctl, clean_env
from vm_support import ALLREDUCE, log_of

pytestmark = pytest.mark.slow

FAILS_ON_1 = (
    "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('one of mine')\ntime.sleep(60)\n"
)


@pytest.fixture
def gpuctl(tmp_path: Path) -> Iterator[Gpuctl]:
    """A gpuctl that has another launcher, and two local hosts."""
    project = tmp_path / "project"
    project.mkdir()
    with forks_of("tests.fakes.plain_launcher", *IMPORTS, env=clean_env()) as forks:
        result = Gpuctl(home=tmp_path / "home", cwd=project, forks=forks)
        result.ok("up", "--provider", "local", "--count", "2")
        yield result
        result.ok("down", "--yes")


def test_another_launcher_runs_jobs_and_names_the_rank_that_failed(gpuctl: Gpuctl) -> None:
    gpuctl.script("allreduce.py", ALLREDUCE)
    words = ("train", "--mode", "plain", "--nproc-per-node", "2", "--json")
    done = gpuctl.ok(*words, "allreduce.py").json
    assert (done["mode"], done["status"], done["world_size"]) == ("plain", "succeeded", 4)
    assert "sum 4" in log_of(gpuctl, done["run"], 3)

    trained = gpuctl.ok(*words, "--", "--epochs", "1", "--model", "mlp", timeout_s=200).json
    assert trained["train"]["epoch_s"]

    gpuctl.script("fails.py", FAILS_ON_1)
    failed = gpuctl(*words, "fails.py")
    assert failed.status == 1
    assert (failed.json["first_error"]["rank"], "one of mine" in failed.json["first_error"]["message"]) == (
        1,
        True,
    )
    planned = gpuctl.ok("train", "--mode", "plain", "--dry-run", "--json", "fails.py").json
    assert (planned["mode"], planned["daemons"]) == ("plain", [])
    assert gpuctl.ok("results").out
