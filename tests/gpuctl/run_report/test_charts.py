"""Charts of a report."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import a_result, a_run

from gpuctl.run_report.charts import (
    COLORS,
    DASHES,
    HEIGHT,
    LEFT,
    SHAPES,
    TOP,
    WIDTH,
    log_ticks,
    loss_chart,
    share_chart,
    speed_chart,
    ticks,
)
from gpuctl.run_results.plots import LINES, MARKERS, write_plot
from gpuctl.run_results.repeats import series_of
from inventories.disk.store import RunFolder
from inventories.runs.result import Result, Share, TrainSummary


def saved(folder: Path, at: int, words: str) -> Result:
    path = folder / f"20261121-05462{at}-000{at}"
    path.mkdir()
    RunFolder(path).save_run(a_run(run=path.name, args=tuple(words.split())))
    return a_result(run=path.name, dir=str(path))


@pytest.mark.parametrize(
    ("low", "high", "most", "whole", "expected"),
    [
        (0.0, 10.0, 5, False, [0, 2, 4, 6, 8, 10]),
        (0.512, 0.6, 4, False, [0.55, 0.6]),
        (1, 3, 8, True, [1, 2, 3]),
        (10, 600, 8, True, [100, 200, 300, 400, 500, 600]),
        (7.0, 7.0, 5, False, [7.0]),
        (-1.0, 1.0, 4, False, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round_numbers(
    low: float, high: float, most: int, whole: bool, expected: list[float]
) -> None:
    assert ticks(low, high, most, whole=whole) == expected


def test_ticks_of_a_log_axis_are_powers_or_parts_of_them() -> None:
    assert log_ticks(0.03, 2.0) == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2])
    assert log_ticks(1e-6, 1e6) == pytest.approx([10.0**power for power in range(-6, 7, 2)])


def test_lines_of_losses_end_in_the_order_of_the_legend_and_break_at_nan() -> None:
    runs = [
        a_result(run=f"r-{at}", train=TrainSummary(loss=loss, loss_by="step", loss_at=(10, 20, 30)))
        for at, loss in enumerate(((3.0, 2.0, 1.0), (3.0, float("nan"), 2.0), (3.0, 2.0, 1.5)))
    ]
    chart = loss_chart(runs, ["a", "b", "c"], best="r-0")
    assert chart is not None
    assert [(line.label, line.best, len(line.parts)) for line in chart.lines] == [
        ("b", False, 2), ("c", False, 1), ("a", True, 1),
    ]  # fmt: skip
    assert len({line.style for line in chart.lines}) == 3
    points = [
        tuple(map(float, point.split(",")))
        for line in chart.lines
        for part in line.parts
        for point in part.split()
    ]
    assert all(LEFT <= x <= WIDTH and TOP <= y <= HEIGHT for x, y in points)
    assert (chart.unit, [tick.label for tick in chart.x_ticks]) == ("step", ["10", "15", "20", "25", "30"])
    assert loss_chart([a_result()], ["a"], None) is None


def test_legend_of_a_line_that_the_chart_does_not_show_says_why() -> None:
    losses = ((2.0, 1.9), (2.0, 1.8), (50.0, 1e30), (math.nan, math.nan))
    runs = [a_result(run=f"r-{at}", train=TrainSummary(loss=loss)) for at, loss in enumerate(losses)]
    chart = loss_chart(runs, ["a", "b", "c", "d"], best="r-1")
    assert chart is not None
    assert {line.legend for line in chart.lines} == {"a", "b", "c, above the cut", "d, no finite loss"}


def test_runs_of_a_setting_share_a_line_and_its_legend_and_the_best_has_its_own(tmp_path: Path) -> None:
    points = ((0.1, 1), (0.1, 2), (0.1, 3), (0.5, 1), (0.9, 1))
    runs = [saved(tmp_path, at, f"--lr {lr} --seed {seed}") for at, (lr, seed) in enumerate(points)]
    series = series_of(runs, list("abcde"), best=runs[0].run)
    assert [(line.style, line.legend) for line in series] == [
        (0, "a"),
        (0, "lr 0.1 (3 runs)"),
        (0, ""),
        (1, "d"),
        (2, "e"),
    ]
    assert [line.legend for line in series_of(runs[:3], list("abc"), None)] == ["a", "b", "c"]


def test_lines_differ_in_black_and_white() -> None:
    styles = range(48)
    assert len({(at % SHAPES, at % COLORS < SHAPES, at % len(DASHES)) for at in styles}) == 48
    assert len({(at % len(MARKERS), at % len(LINES)) for at in styles}) == 48


def test_bars_are_fractions_of_the_fastest_and_of_a_step() -> None:
    train = TrainSummary(samples_per_s=100.0, share=Share(compute=0.5, communication=0.25, data=0.25))
    runs = [a_result(train=train), a_result(train=replace(train, samples_per_s=400.0)), a_result()]
    assert [(bar.label, bar.parts, bar.best) for bar in speed_chart(runs, ["a", "b", "c"])] == [
        ("a", (0.25,), False),
        ("b", (1.0,), True),
    ]
    assert [bar.shown for bar in share_chart(runs, ["a", "b", "c"])] == ["50 %, 25 %, 25 %"] * 2


@pytest.mark.parametrize(
    "losses",
    [
        (1e308, -1e308),
        (1e308, 1e-300),
        (5e-324, 1.0),
        (1e38, 1e-38, 2e-38, 1.5e-38, 1e-38, 1e-38),
        (-1e38, 1e38),
        (0.0, 1e-320),
        (math.inf, 1e301),
    ],
)
def test_extreme_losses_and_speeds_are_drawn_or_left_out(losses: tuple[float, ...], tmp_path: Path) -> None:
    train = TrainSummary(loss=losses, samples_per_s=abs(losses[0]))
    runs = [
        a_result(run=f"r-{at}", train=replace(train, samples_per_s=1.0 * at or train.samples_per_s))
        for at in (0, 1)
    ]
    chart = loss_chart(runs, ["a", "b"], best=None)
    if chart is not None:
        places = [place for line in chart.lines for part in line.parts for place in re.split("[ ,]", part)]
        assert all(math.isfinite(float(place)) for place in places)
        assert all(math.isfinite(tick.at) for tick in chart.y_ticks)
        assert len({tick.label for tick in chart.y_ticks}) == len(chart.y_ticks)
    assert all(0 <= bar.parts[0] <= 1 for bar in speed_chart(runs, ["a", "b"]))
    assert write_plot(runs, tmp_path / "a.svg")


def test_place_beyond_every_chart_is_left_out() -> None:
    train = TrainSummary(loss=(0.5, 0.4), loss_by="step", loss_at=(1, 10**400))
    chart = loss_chart([a_result(train=train)], ["a"], best=None)
    assert chart is not None
    assert [tick.label for tick in chart.x_ticks] == ["1"]


def test_ticks_of_tiny_numbers_differ() -> None:
    assert ticks(0.0, 4e-13, 4) == pytest.approx([0, 1e-13, 2e-13, 3e-13, 4e-13])
