"""Records of runs that the release before wrote are shown, resumed and removed. `old_runs/` has real ones."""

import json
import shutil
from pathlib import Path

import pytest

from gpuctl import cli
from inventories.disk.store import Store
from inventories.machine import Inventory

OLD_RUNS = Path(__file__).parent / "old_runs"
"""An elastic job of a script: two runs that failed, one that resumed them; and a run of the built-in job."""
FAILED, FAILED_AGAIN, RESUMED, BUILT_IN = sorted(path.name for path in OLD_RUNS.iterdir())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A home with the old runs, whose machines are gone."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    shutil.copytree(OLD_RUNS, tmp_path / "runs")
    store = Store(tmp_path)
    store.cluster("default").save(
        Inventory(cluster="default", provider="hosts", created_at="2026-11-23T05:00:00+00:00", machines=())
    )
    return store


def test_old_runs_are_listed_and_shown(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["run"], run["status"]) for run in runs] == [
        (FAILED, "failed"),
        (FAILED_AGAIN, "failed"),
        (RESUMED, "succeeded"),
        (BUILT_IN, "succeeded"),
    ]
    assert cli.main(["results", RESUMED, "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)["runs"]
    stored = json.loads((OLD_RUNS / RESUMED / "result.json").read_text())
    assert {key: shown[key] for key in stored if key != "format"} == {
        key: value for key, value in stored.items() if key != "format"
    }
    assert shown["checkpoints"] == {}
    assert cli.main(["results", RESUMED]) == 0
    assert f"from run {FAILED_AGAIN}" in capsys.readouterr().out


def test_old_run_is_resumed_with_its_options(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = store.run(FAILED).checkpoints_path
    checkpoints.mkdir()
    (checkpoints / "a.pt").write_text("x")
    assert cli.main(["train", "--resume-from", FAILED, "--dry-run"]) == 2
    assert f"Run {FAILED} was given --env TOKEN, and values are not kept" in capsys.readouterr().err
    assert cli.main(["train", "--resume-from", FAILED, "--env", "TOKEN=1", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert f"note: --nnodes 1:2, as run {FAILED} was started" in said
    assert "--nnodes 1:2 is not possible: the cluster default has 0 nodes" in said


def test_old_runs_are_removed_by_clean(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["clean", "--here", "--keep-runs", "1", "--yes", "--json"]) == 0
    assert [folder.id for folder in store.runs()] == [BUILT_IN]
