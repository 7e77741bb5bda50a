"""The runs that `results` shows."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support import a_result, a_run

from gpuctl.command_line import cli
from inventories.disk.store import RunFolder, Store
from inventories.runs.result import TrainSummary
from inventories.runs.run import RunOptions

BEGAN = datetime(2026, 11, 21, tzinfo=UTC)


def ended(store: Store, name: str, *, loss: float, script: str = "my.py", **tags: str) -> RunFolder:
    """Save a run that has ended."""
    folder = store.new_run(BEGAN + timedelta(days=len(store.runs())))
    run = a_run(run=folder.id, script=script, options=RunOptions(name=name, tags=tags))
    folder.save_run(run)
    folder.save_result(
        replace(
            a_result(run=folder.id, name=name, script=script, tags=tags, dir=str(folder.path)),
            train=TrainSummary(loss=(loss,)),
        )
    )
    record = {"format": 1, "node": run.nodes[0].name, "launcher": "torchrun", "exit_code": 0}
    (folder.nodes_path / f"{run.nodes[0].name}.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the store with five runs; the worst is the latest, the best is of another script."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    store = Store.default()
    ended(store, "base", loss=0.5, sweep="lr", seed="1")
    ended(store, "fast", loss=0.25, sweep="lr", seed="2")
    ended(store, "other", loss=0.1, script="other.py", sweep="lr")
    ended(store, "untagged", loss=0.4)
    ended(store, "last", loss=0.9, sweep="lr", seed="1")
    return store


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the names of the runs that the command shows."""
    assert cli.main(["results", "--json", *words]) == 0
    return [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["last"]),
        (["latest"], ["last"]),
        (["base", "untagged"], ["base", "untagged"]),
        (["--last", "2"], ["untagged", "last"]),
        (["--tag", "sweep=lr"], ["base", "fast", "other", "last"]),
        (["--tag", "sweep=lr", "--tag", "seed=1"], ["base", "last"]),
        (["--tag", "sweep=lr", "--last", "2"], ["other", "last"]),
        (["best"], ["fast"]),
        (["best", "latest"], ["fast", "last"]),
        (["fast", "last", "best", "latest"], ["fast", "last"]),
        (["best", "--tag", "sweep=lr"], ["other"]),
        (["best", "--last", "2"], ["untagged"]),
    ],
)
@pytest.mark.usefixtures("store")
def test_results_shows_the_chosen_runs(
    capsys: pytest.CaptureFixture[str], words: list[str], names: list[str]
) -> None:
    assert shown(capsys, *words) == names


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (
            ["base", "--last", "2"],
            2,
            "--last and --tag choose among all runs: leave them out, or leave out base.",
        ),
        (
            ["--tag", "a=b"],
            2,
            "No run of the cluster default has the tag a=b. `gpuctl runs --json` lists the tags.",
        ),
        (
            ["--tag", "a=1", "--tag", "a=2"],
            2,
            "No run has the tag a with two values, '1' and '2'. Leave one of them out.",
        ),
        (["--tag", "a"], 2, "Tag 'a' can't be used: write K=V"),
        (["bsae"], 2, "There is no run 'bsae'; did you mean 'base'?"),
    ],
)
@pytest.mark.usefixtures("store")
def test_results_refuses_runs_that_it_can_not_choose(
    capsys: pytest.CaptureFixture[str], words: list[str], status: int, sentence: str
) -> None:
    assert cli.main(["results", *words]) == status
    assert sentence in capsys.readouterr().err


def test_results_of_one_run_name_the_sweep_that_it_is_of(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "one of 4 runs of a sweep: gpuctl results --tag sweep=lr\n"
    for name, expected in (("fast", sentence), ("untagged", "")):
        assert cli.main(["results", name]) == 0
        assert capsys.readouterr().err == expected


def test_best_needs_a_run_that_succeeded_with_a_measure(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in store.runs():
        result = folder.load_result()
        assert result is not None
        folder.save_result(replace(result, train=TrainSummary()))
    assert cli.main(["results", "best"]) == 2
    assert "No run of my.py that succeeded has an accuracy or a loss" in capsys.readouterr().err
