"""The table of a search's trials as people see it, without colour."""

import io

import pytest

from gpuctl.options import Options
from gpuctl.output import Output
from gpuctl.tables.tune import tune_table
from gpuctl.workflow.benchmarks.tune import Tuned
from inventories.run import Result, Seconds, TrainSummary
from inventories.search import Search, Trial

RESULT = Result(
    run="20261121-054625-3fa9",
    cluster="default",
    mode="ray",
    script="tune built-in",
    status="succeeded",
    exit_code=0,
    nnodes=1,
    nproc_per_node=1,
    world_size=1,
    started_at="2026-11-21T05:46:25+00:00",
    ended_at="2026-11-21T05:46:41+00:00",
    seconds=Seconds(
        total=16.0, connect=0.2, prepare=1.1, preflight=0.05, launch=0.3, train=12.0, collect=0.1
    ),
    train=TrainSummary(),
    ranks=(),
    first_error=None,
    cost_usd=0.0,
    dir="/home/me/.gpuctl/runs/20261121-054625-3fa9",
)


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


def drawn(*trials: Trial) -> list[str]:
    search = Search.of("accuracy", "max", trials)
    tuned = Tuned(result=RESULT, words=("--epochs", "3"), search=search, interrupted=False)
    out = io.StringIO()
    Output(Options(no_color=True), stdout=out).table(tune_table(tuned))
    return out.getvalue().splitlines()


def test_tune_table_puts_best_first_and_prints_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    failed = trial(2, None, status="failed", error="ValueError: no such layer")
    assert drawn(trial(1, 0.981), failed) == [
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
    assert drawn(trial(1, 0.981))[:3] == [
        "trial      lr  optimizer  accuracy   time  status",
        "    1  0.0123       adam     0.981  1.5 s  done",
        "no room for reports",
    ]
