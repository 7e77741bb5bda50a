"""The single reading of a request's files."""

import shutil
from pathlib import Path

import pytest

from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.launchable import read
from gpuctl.workflow.runs.request.request import TrainRequest, with_plain_strategy
from inventories.machine import Inventory, Machine

MACHINE = Machine(
    name="n-0", rank=0, state="running", host="h", user="u", private_ip="10.0.0.1", gpus=0, id="i"
)
INVENTORY = Inventory(
    cluster="c", provider="hosts", created_at="2026-11-21T05:46:25+00:00", machines=(MACHINE,)
)


def test_nothing_of_the_project_is_read_again_after_read(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "my.py").write_text('import lib\nopen("/data/x.csv")\n')
    (folder / "lib.py").write_text('rank = environ["RANK"]\nload("best.yaml")\n')
    (folder / "best.yaml").write_text("out: ~/results\n")
    (folder / "requirements.txt").write_text("numpy\n")
    launchable = read(TrainRequest(words=(str(folder / "my.py"), "--config", "bets.yaml"), project=folder))
    (note,) = launchable.notes(INVENTORY, 2)
    assert note == "note: bets.yaml does not exist: did you mean best.yaml?"
    shutil.rmtree(folder)
    install = launchable.packages.on([MACHINE], same_machine=False)
    assert install.environment is not None
    assert install.environment.source == "requirements.txt"
    assert (launchable.script.title, launchable.folder, len(launchable.tree.entries)) == ("my.py", ".", 4)
    assert launchable.sources.names_ranks
    assert {"/data/x.csv", "~/results"} <= set(launchable.sources.outside_paths)
    assert launchable.destination(INVENTORY).startswith("~/.gpuctl-node/code/project-")


def test_script_that_shares_no_work_is_said_to_run_on_each_node(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text("import torch\n")
    launchable = read(TrainRequest(words=(str(tmp_path / "my.py"),), project=tmp_path))
    assert launchable.notes(INVENTORY, 1) == []
    assert launchable.notes(INVENTORY, 2) == [
        "note: my.py runs as a whole on each of 2 nodes; --nnodes 1 runs it on one"
    ]


def test_options_of_the_built_in_job_are_checked_when_the_request_is_read() -> None:
    with pytest.raises(Usage, match="--epohs"):
        read(TrainRequest(words=("--epohs", "1")))
    with pytest.raises(Usage, match="--strategy auto is for gpuctl train"):
        read(TrainRequest(words=("--strategy", "auto")))
    request = with_plain_strategy(TrainRequest(words=("--strategy=auto",)))
    assert read(request).script.args == ("--strategy=ddp",)
