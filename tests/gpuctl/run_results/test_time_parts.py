from typing import Any

import pytest

from gpuctl.run_results.rank_metrics import RankMetrics
from gpuctl.run_results.time_parts import first_step_of, time_lines, train_parts_of
from inventories.runs.result import FirstStepParts, TrainParts, TrainSummary
from remote.runs.metrics_lines import MetricsFile

Lines = list[dict[str, Any]]
START = {"event": "start", "time": 100.0, "seconds": {"device": 0.5, "data": 1.0, "model": 2.0}}
END = {
    "event": "end",
    "time": 130.0,
    "parts": {"first_steps": 6.0, "steps": 18.0, "evaluation": 4.0, "checkpoints": 2.0},
}
PARTS = TrainParts(start=10.0, first_steps=6.0, steps=18.0, evaluation=4.0, checkpoints=2.0, end=1.5)
FIRST_STEP = FirstStepParts(imports=6.5, device=0.5, data=1.0, model=2.0, step=2.5)


def parsed(lines: Lines) -> RankMetrics:
    return RankMetrics.of(MetricsFile(lines=lines))


def steps(first: float) -> Lines:
    return [{"step": n, "time": first + n - 1} for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("launched", "seconds"),
    [
        ({0: 96.0, 1: 97.0, 2: 0.0, 3: 0.0}, 7.0),
        ({0: 96.0}, 5.0),
        ({2: 96.0, 3: 96.0}, None),
        ({}, None),
        ({0: 96.0, 1: 200.0}, None),
    ],
    ids=["all", "one rank", "ranks without a step", "not known", "a clock that was set meanwhile"],
)
def test_first_step_is_that_of_the_slowest_rank(launched: dict[int, float], seconds: float | None) -> None:
    metrics: dict[int, Lines] = {0: steps(101), 1: steps(104), 2: [{"step": 1}], 3: []}
    assert first_step_of({rank: parsed(lines) for rank, lines in metrics.items()}, launched) == (
        seconds,
        None,
    )


@pytest.mark.parametrize(
    ("start", "step", "seconds"), [([], 0, 5.0), ([], 5, None), ([START], 201, 5.0)], ids=str
)
def test_first_line_of_a_script_on_a_later_step_is_not_its_first_step(
    start: Lines, step: int, seconds: float | None
) -> None:
    lines: Lines = [*start, {"step": step, "time": 101.0}, {"step": step + 5, "time": 102.0}]
    assert first_step_of({0: parsed(lines)}, {0: 96.0})[0] == seconds


def test_first_step_is_accounted_for() -> None:
    seconds, parts = first_step_of({0: parsed([START, *steps(102.5)])}, {0: 90.0})
    assert (seconds, parts) == (12.5, FIRST_STEP)


@pytest.mark.parametrize(
    "changed", [{"seconds": None}, {"seconds": {"device": "fast"}}, {"time": None}, {"event": "other"}]
)
def test_first_step_of_any_script_may_have_no_parts(changed: dict[str, Any]) -> None:
    assert first_step_of({0: parsed([START | changed, *steps(102.5)])}, {0: 90.0}) == (12.5, None)


def test_train_parts_add_up_to_the_whole() -> None:
    assert train_parts_of(parsed([START, *steps(102.5), END]), 90.0, 131.5) == PARTS


@pytest.mark.parametrize(
    "lines", [[], [START], [END], [START, END | {"parts": None}], [START | {"time": "now"}, END]]
)
def test_train_parts_are_not_known_of_a_run_that_tells_less(lines: Lines) -> None:
    assert train_parts_of(parsed(lines), 90.0, 131.5) is None


@pytest.mark.parametrize(("launched", "ended"), [(100.5, 131.5), (90.0, 129.0)])
def test_clock_that_was_set_meanwhile_tells_no_parts(launched: float, ended: float) -> None:
    assert train_parts_of(parsed([START, END]), launched, ended) is None


def test_train_parts_are_not_known_without_the_records_of_the_node() -> None:
    assert train_parts_of(parsed([START, END]), None, 131.5) is None
    assert train_parts_of(parsed([START, END]), 90.0, None) is None


def test_table_tells_where_the_time_went_unless_steps_took_it() -> None:
    assert time_lines(TrainSummary(parts=PARTS, first_step=FIRST_STEP)) == [
        (
            "train",
            "start 10.0 s (imports 6.5 s, device 0.5 s, data 1.0 s, model 2.0 s), first steps 6.0 s, steps 18.0 s, "
            "evaluation 4.0 s, checkpoints 2.0 s, end 1.5 s",
        )
    ]
    slower = FirstStepParts(imports=8.5, device=0.5, data=1.0, model=2.0, step=2.5)
    [(_, row)] = time_lines(TrainSummary(parts=PARTS, first_step=slower))
    assert row.startswith("start 12.0 s (imports 8.5 s, ")
    long = TrainParts(start=10.0, first_steps=6.0, steps=1800.0, evaluation=4.0, checkpoints=0.0, end=1.0)
    assert time_lines(TrainSummary(parts=long)) == time_lines(TrainSummary()) == []
