"""Test the report of `train` on a run that it followed to its end."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import a_run

from gpuctl.app import App
from gpuctl.commands.train import report
from inventories.disk.store import RunFolder, Store
from inventories.runs.end_reasons import Ended, Reason
from inventories.runs.records import NodeRecord
from inventories.runs.result import Result, Seconds, TrainSummary
from inventories.runs.run import RunNode
from remote.runs.run_files import save_node_record


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return the result of a run stopped by a person, with a local checkpoint."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    folder = Store(tmp_path).new_run(datetime.now(UTC))
    part = RunNode(name="gpu-0", rank=0, nproc=1, first_rank=0, run_dir="/r")
    folder.save_run(
        a_run(run=folder.id, nodes=(part,))
    )  # fmt: skip
    folder.checkpoints_path.mkdir()
    (folder.checkpoints_path / "step-1.pt").write_bytes(b"x")
    return Result(
        run=folder.id, cluster="default", mode="torchrun", script="my.py", status="stopped", exit_code=None,
        nnodes=1, nproc_per_node=1, world_size=1, started_at="", ended_at=None, seconds=Seconds(),
        train=TrainSummary(), ranks=(), first_error=None, cost_usd=None, dir=str(folder.path),
        reason=Reason.STOPPED,
    )  # fmt: skip


def test_run_that_ended_as_its_gpus_did_nothing_is_said_so(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = Ended(reason=Reason.GPUS_IDLE, seconds=5400.0, percent=10.0)
    save_node_record(RunFolder(Path(result.dir)), NodeRecord(node="gpu-0", launcher="torchrun", ended=ended))
    assert report(App(), replace(result, reason=Reason.GPUS_IDLE), interrupted=False) == 1
    assert "it was stopped, as all its GPUs were below 10 % for 90 min\n" in capsys.readouterr().err


def test_run_that_was_stopped_as_it_hung_is_said_so_with_how_to_resume(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(App(), replace(result, reason=Reason.STOPPED_HUNG), interrupted=False) == 1
    output = capsys.readouterr().err
    assert "it was stopped as it hung; `gpuctl why" in output
    assert "resume from there: gpuctl train --resume" in output
    assert "another command" not in output


def test_run_that_another_command_stopped_is_said_so(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(App(), result, interrupted=False) == 1
    assert "it was stopped by another command: gpuctl stop, or gpuctl down" in capsys.readouterr().err
