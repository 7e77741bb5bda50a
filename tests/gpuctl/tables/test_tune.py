"""The table of a search's trials as people see it, without colour."""

import pytest
from support import a_result, drawn

from gpuctl.tables.tune import tune_table
from inventories.runs.search import Search, Trial

RESULT = a_result(mode="ray", script="tune built-in")


def trial(number: int, value: float | None, *, status: str = "done", error: str | None = None) -> Trial:
    return Trial(
        trial=number,
        params={"lr": 0.0123 * number, "optimizer": "adam"},
        metrics={},
        value=value,
        status=status,
        reports=3,
        seconds=1.5,
        error=error,
    )


def lines_of(*trials: Trial) -> list[str]:
    search = Search.of("accuracy", "max", trials)
    return drawn(tune_table(RESULT, search, ("--epochs", "3"))).splitlines()


def test_tune_table_puts_best_first_and_prints_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    failed = trial(2, None, status="failed", error="ValueError: no such layer")
    assert lines_of(trial(1, 0.981), failed) == [
        "trial      lr  optimizer  accuracy  reports   time  status",
        "    1  0.0123       adam     0.981        3  1.5 s  done",
        "    2  0.0246       adam         -        3  1.5 s  failed: ValueError: no such",
        "                                                    layer",
        "",
        "best: gpuctl train -- --epochs 3 --lr 0.0123 --optimizer adam",
        "run 20261121-054625-3fa9 succeeded; gpuctl logs 20261121-054625-3fa9 has what",
        "the trials said",
    ]


def test_tune_table_drops_columns_to_fit_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert lines_of(trial(1, 0.981))[:3] == [
        "trial      lr  optimizer  accuracy   time  status",
        "    1  0.0123       adam     0.981  1.5 s  done",
        "no room for reports",
    ]
