"""Test the records of a search's trials, as Ray Tune reports them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.node.ray.tune import Rounds, Trials

SEARCH = {"metric": "eval/accuracy", "mode": "max", "trials": 2}


def trial(name: str) -> Any:
    return SimpleNamespace(trial_id=name, config={"lr": 0.1})


def saved(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["trials"]


def test_trials_saves_and_prints_a_trial_from_start_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trials.json"
    trials = Trials(SEARCH, path)
    trials.update(trial("a"), None, "running")
    trials.update(trial("a"), {"eval": {"accuracy": 0.75}, "training_iteration": 3, "pid": 7}, "running")
    trials.update(trial("a"), None, "done")
    [item] = saved(path)
    assert (item["metrics"], item["value"], item["reports"]) == ({"eval/accuracy": 0.75}, 0.75, 3)
    assert item["status"] == "done"
    assert capsys.readouterr().out.splitlines() == [
        "trial 0: lr 0.1  begins",
        "trial 0: lr 0.1  eval/accuracy 0.75  (done; 1 of 2 over)",
    ]


def test_trials_names_an_unreported_metric_and_stops(tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    trials = Trials(SEARCH, path)
    trials.update(trial("a"), None, "running")
    with pytest.raises(KeyError):
        trials.update(trial("a"), {"accuracy": 0.75, "pid": 7, "config": {"lr": 0.1}}, "running")
    assert trials.wrong_metric == (
        "error: --metric eval/accuracy: no such thing is reported (did you mean 'accuracy'?), but accuracy"
    )
    trials.stopped()
    assert [item["status"] for item in saved(path)] == ["stopped"]


def test_rounds_draws_each_value_once_before_any_twice() -> None:
    values = ["sgd", "adam", "adamw"]
    draw = Rounds(values, "0-optimizer")
    rounds = [[draw(None) for _ in values] for _ in range(20)]
    assert all(sorted(drawn) == sorted(values) for drawn in rounds)
    assert len({tuple(drawn) for drawn in rounds}) > 1
    again = Rounds(values, "0-optimizer")
    assert [again(None) for _ in range(60)] == [value for drawn in rounds for value in drawn]
