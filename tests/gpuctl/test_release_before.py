"""Runs that the release before recorded, real ones in `release_before/`: shown, concluded, resumed and removed."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from gpuctl.command_line import cli
from gpuctl.tables.run import draw_run
from gpuctl.workflow.runs.collect import attach
from inventories.disk.store import RunFolder, Store
from inventories.machine import Inventory
from inventories.runs.end_reasons import Ended, Reason
from remote.runs.node_state import record_of_end
from remote.runs.observer import Observer
from remote.runs.run_files import read_node_records

RUNS = Path(__file__).parent / "release_before"
RESUMED_RUNS, FAILED_RUNS = RUNS / "resumed", RUNS / "failed"
FIRST, SECOND, THIRD, BUILT_IN = sorted(path.name for path in RESUMED_RUNS.iterdir())
"""An elastic job of a script: two runs that failed, one that resumed them; and a run of the built-in job."""
FAILED, HUNG = "20261123-051414-51f4", "20261123-051649-9cf0"
KILLED, SHUT_DOWN = "20261123-051916-3286", "20261123-051929-7082"
"""A rank failed, a rank was stopped in the middle, a runner was killed, a runner got SIGTERM."""
OF_HUNG = (
    "hung, or was far behind: rank 0 waited for it in vain (error: Rank 0 waited 8 s for another rank in vain"
)
OF_SIGTERM = "the run was ended by SIGTERM: the machine was shut down, or somebody on it ended the run"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shutil.copytree(FAILED_RUNS, tmp_path / "runs")
    return Store(tmp_path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A home with an elastic job, whose machines are gone."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    shutil.copytree(RESUMED_RUNS, tmp_path / "runs")
    store = Store(tmp_path)
    store.cluster("default").save(
        Inventory(cluster="default", provider="hosts", created_at="2026-11-23T05:00:00+00:00", machines=())
    )
    return store


class Nobody(Observer):
    """Watches nothing."""


def shown(folder: RunFolder) -> str:
    result = folder.load_result()
    assert result is not None
    out = io.StringIO()
    Console(width=400, file=out).print(draw_run(result))
    return out.getvalue()


@pytest.mark.parametrize(
    ("run", "who", "says", "reason"),
    [
        (
            FAILED,
            "rank 1 on default-1",
            "exit status 3: rank 1 begins",
            Reason.TOLD,
        ),
        (HUNG, "rank 1 on default-1", OF_HUNG, Reason.HUNG),
        (KILLED, "default-1", "the runner was killed from outside", Reason.TOLD),
        (SHUT_DOWN, "default-1", OF_SIGTERM, Reason.TOLD),
    ],
)
def test_results_show_run_of_older_release(
    store: Store, run: str, who: str, says: str, reason: Reason
) -> None:
    result = store.run(run).load_result()
    assert result is not None
    assert result.first_error is not None
    assert (result.first_error.reason, result.reason) == (reason, None)
    assert shown(store.run(run)).startswith(f"{who} failed first: {says}")


@pytest.mark.parametrize(
    ("run", "rank", "says", "reason"),
    [
        (FAILED, 1, "exit status 3 without a traceback; its log ends with: rank 1 begins", Reason.EXIT_CODE),
        (HUNG, 1, OF_HUNG, Reason.HUNG),
        (KILLED, None, "the runner was killed from outside", Reason.TOLD),
        (SHUT_DOWN, None, OF_SIGTERM, Reason.TOLD),
    ],
)
def test_run_of_older_release_is_concluded_from_its_records(
    store: Store, run: str, rank: int | None, says: str, reason: Reason
) -> None:
    (store.run(run).path / "result.json").unlink()
    result = attach(store, store.run(run), Nobody(), wait=False)
    error = result.first_error
    assert error is not None
    assert (error.rank, error.node, error.reason, result.reason) == (rank, "default-1", reason, reason)
    assert error.message.startswith(says)
    assert store.run(run).load_result() == result


@pytest.mark.parametrize("run", [FAILED, HUNG, KILLED, SHUT_DOWN])
def test_word_of_an_older_runner_is_understood(store: Store, run: str) -> None:
    folder = store.run(run)
    records = {record.node: record for record in read_node_records(folder, folder.load_run().nodes)}
    for path in (folder.path / "exit").iterdir():
        state = {**json.loads(path.read_text()), "running": False}
        assert record_of_end(path.stem, "torchrun", state) == records[path.stem]
    if run == KILLED:
        failure = Ended(reason=Reason.TOLD, detail="the runner was killed from outside")
        assert records["default-1"].failure == failure


def test_runs_of_older_release_are_listed_and_shown(home: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["run"], run["status"]) for run in runs] == [
        (FIRST, "failed"),
        (SECOND, "failed"),
        (THIRD, "succeeded"),
        (BUILT_IN, "succeeded"),
    ]
    assert cli.main(["results", THIRD, "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)["runs"]
    stored = json.loads((RESUMED_RUNS / THIRD / "result.json").read_text())
    for part in ("train", "usage"):
        shown[part] = {key: shown[part][key] for key in stored[part]}
    assert {key: shown[key] for key in stored if key != "format"} == {
        key: value for key, value in stored.items() if key != "format"
    }
    assert shown["checkpoints"] == {}
    assert cli.main(["results", THIRD]) == 0
    assert f"from run {SECOND}" in capsys.readouterr().out


def test_run_of_older_release_is_resumed_with_its_options(
    home: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = home.run(FIRST).checkpoints_path
    checkpoints.mkdir()
    (checkpoints / "a.pt").write_text("x")
    assert cli.main(["train", "--resume-from", FIRST, "--dry-run"]) == 2
    assert f"Run {FIRST} was given --env TOKEN, and values are not kept" in capsys.readouterr().err
    assert cli.main(["train", "--resume-from", FIRST, "--env", "TOKEN=1", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert f"note: --nnodes 1:2, as run {FIRST} was started" in said
    assert "--nnodes 1:2 is not possible: the cluster default has 0 nodes" in said


def test_export_refuses_what_it_can_not_read(home: Store, capsys: pytest.CaptureFixture[str]) -> None:
    target = home.home / "model.pt"
    assert cli.main(["export", BUILT_IN, "-o", str(target)]) == 2
    assert f"No checkpoint of run {BUILT_IN} is in reach: none came back with it" in capsys.readouterr().err
    assert cli.main(["export", FIRST, "-o", str(target)]) == 2
    assert "only the built-in job's checkpoints are known" in capsys.readouterr().err
    assert cli.main(["export", BUILT_IN, "-o", "model.onnx"]) == 2
    assert "model.onnx ends in neither .safetensors nor .pt" in capsys.readouterr().err


def test_runs_of_older_release_are_removed_by_clean(home: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["clean", "--here", "--keep-runs", "1", "--yes", "--json"]) == 0
    assert [folder.id for folder in home.runs()] == [BUILT_IN]
