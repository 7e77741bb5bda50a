"""A search's trials in the results of its run: read, ordered, shown, exported."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import a_result, drawn

from gpuctl.errors import Failed
from gpuctl.run_results.csv_table import csv_text
from gpuctl.run_results.read_run import read_search
from gpuctl.tables.run import run_table
from inventories.disk.store import RunFolder
from inventories.runs.result import Result, Seconds


def row(number: int, value: float | None, **more: Any) -> dict[str, Any]:
    """A trial as the first node keeps it."""
    trial = {"trial": number, "params": {"lr": number / 10}, "metrics": {}, "value": value, "reports": 2}
    return trial | {"error": None, "status": "done", "seconds": 1.5} | more


@pytest.fixture
def run(tmp_path: Path) -> Result:
    (tmp_path / "artifacts").mkdir()
    trials = [row(1, 0.5), row(2, None, status="failed", error="boom"), row(3, 0.9, node="10.0.0.2")]
    document = {"metric": "accuracy", "mode": "max", "trials": trials}
    (tmp_path / "artifacts" / "trials.json").write_text(json.dumps(document))
    return a_result(mode="ray", script="tune built-in", ended_at=None, seconds=Seconds(), dir=str(tmp_path))


def searched(run: Result) -> Result:
    return replace(run, search=read_search(RunFolder(Path(run.dir))))


@pytest.mark.parametrize(("mode", "order"), [("max", [3, 1, 2]), ("min", [1, 3, 2])])
def test_trials_are_read_with_the_best_first_and_those_without_value_last(
    run: Result, mode: str, order: list[int]
) -> None:
    path = Path(run.dir, "artifacts", "trials.json")
    path.write_text(path.read_text().replace('"max"', f'"{mode}"'))
    search = read_search(RunFolder(Path(run.dir)))
    assert [trial.trial for trial in search.trials] == order
    assert search.best == search.trials[0]


@pytest.mark.parametrize("text", ['{"trials": [', '{"trials": [{}]}', "[]", "[" * 100_000])
def test_trials_that_cannot_be_read_are_refused(run: Result, text: str) -> None:
    Path(run.dir, "artifacts", "trials.json").write_text(text)
    with pytest.raises(Failed, match="can't be read"):
        read_search(RunFolder(Path(run.dir)))


def test_table_of_a_search_has_its_trials_and_the_command_of_the_best(run: Result) -> None:
    shown = drawn(run_table(searched(run)))
    assert "trial   lr  accuracy  reports   time  status" in shown
    assert "best: gpuctl train -- --lr 0.3" in shown


def test_csv_has_a_row_for_each_trial_below_its_run(run: Result) -> None:
    first, *trials = csv.DictReader(io.StringIO(csv_text([searched(run), replace(run, script="x.py")])))
    assert (first["search.metric"], first["search.best"], first["search.value"]) == ("accuracy", "3", "0.9")
    assert first["trial.value"] == ""
    assert [(trial["run"], trial["trial.trial"], trial["trial.params.lr"]) for trial in trials[:3]] == [
        (run.run, "3", "0.3"),
        (run.run, "1", "0.1"),
        (run.run, "2", "0.2"),
    ]
    assert trials[3]["script"] == "x.py"
