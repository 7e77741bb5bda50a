"""Plots of results."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from result_samples import FAILED, RESULT

from gpuctl.errors import Failed, Usage
from gpuctl.run_results import curves, plots
from inventories.disk.store import RunFolder
from inventories.runs.result import Result, TrainSummary
from inventories.runs.search import Search, Trial


def test_write_plot_refuses_runs_without_timings(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="No run has timings to draw"):
        plots.write_plot([FAILED], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_write_plot_draws_one_line_per_job(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    more = replace(RESULT, run="20261121-054626-0b58", world_size=4)
    other = replace(RESULT, run="20261121-054627-0b59", script="$other$.py", world_size=2)
    alone = replace(RESULT, world_size=1)
    written = plots.write_plot([alone, other, more], tmp_path / "a.svg")
    assert written == f"wrote {tmp_path}/a.svg (losses) and {tmp_path}/a-speed.svg (speed): 3 runs"
    drawn = (tmp_path / "a-speed.svg").read_text()
    assert "<!-- $other$.py -->" in drawn
    assert "<!-- built-in -->" in drawn
    assert "<!-- measured -->" not in drawn
    assert "<!-- built-in, 1 rank, 3fa9" in (tmp_path / "a.svg").read_text()


def test_write_plot_draws_variants_of_a_script_as_dots_without_an_ideal(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    variants = [replace(RESULT, run=f"20261121-{number}", world_size=2) for number in range(3)]
    plots.write_plot(variants, tmp_path / "a.svg")
    drawn = (tmp_path / "a-speed.svg").read_text()
    assert "<!-- speed -->" in drawn
    assert "<!-- 2 ranks, 2 -->" in drawn
    assert "<!-- ideal -->" not in drawn


def test_write_plot_draws_trials_of_a_search_against_each_parameter(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trials = [
        Trial(
            trial=number,
            params={"lr": 10.0**-number, "optimizer": "adam"},
            metrics={},
            value=value,
            status="done",
            reports=1,
            seconds=1.0,
        )
        for number, value in enumerate((0.5, 0.75, None))
    ]
    search = Search.of("accuracy", "max", trials)
    plots.write_plot([replace(RESULT, train=TrainSummary(), search=search)], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    for label in ("2 trials", "lr", "optimizer", "adam", "accuracy", "best: trial 1"):
        assert f"<!-- {label} -->" in drawn, label


def saved(run: Result, home: Path) -> Result:
    """Save a run with its result in its folder, where resuming runs find it."""
    folder = RunFolder(home / run.run)
    folder.path.mkdir()
    run = replace(run, dir=str(folder.path))
    folder.save_result(run)
    return run


def test_runs_of_a_job_are_one_curve_with_the_epochs_that_they_began_with(tmp_path: Path) -> None:
    train = replace(RESULT.train, loss=(0.9, 0.5, 0.4), loss_at=(1, 2, 3))
    first = saved(replace(RESULT, run="20261121-1", train=train), tmp_path)
    train = replace(train, loss=(0.35, 0.2), loss_at=(), epochs_before=2)
    second = saved(replace(RESULT, run="20261121-2", resumed_from=first.run, train=train), tmp_path)
    alone = replace(RESULT, run="20261121-3")
    for named in ([second], [first, second]):
        assert [run.run for runs in curves.jobs_of(named) for run in runs] == [first.run, second.run]
    assert len(curves.jobs_of([second, alone])) == 2
    assert curves.loss_curve([first, second]) == ({1: 0.9, 2: 0.5, 3: 0.35, 4: 0.2}, [3])


def test_losses_by_step_and_by_epoch_are_not_one_curve() -> None:
    by_step = replace(
        RESULT, train=TrainSummary(loss=(3.0,), loss_at=(100,), loss_by="step", loss_from="log")
    )
    assert curves.loss_curve([RESULT, by_step]) == ({100: 3.0}, [])


def test_plot_has_only_panels_with_something_in_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots.write_plot([replace(RESULT, train=TrainSummary(loss=(0.5, 0.2)))], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "<!-- training loss -->" in drawn
    assert "<!-- speed -->" not in drawn
    assert "step's time" not in drawn


@pytest.mark.parametrize(
    ("losses", "note"),
    [
        (((2.31, 2.3, math.nan, 2.29),), ""),
        (((100.0, 1.0, math.inf, 0.1),), " (log axis)"),
        (((100.0, -1.0),), ""),
        (((math.nan,),), ""),
        (((2.3, 0.6, 0.54, 0.52, 0.51, 0.5), (2.3, 0.7, 0.58, 0.57, 0.56, 0.55)), " (cut above 0.75)"),
        (((2300.0, 0.9, 0.6, 0.5, 0.4, 0.3),), " (log axis, cut above 1.5)"),
        (((2.0, 0.1), (2.0, 1e30), (1.9, 1.5)), " (log axis, cut above 2 where 1 run diverged)"),
        (((2.0, 1.9), (2.0, 1e30, math.nan)), " (cut above 2 where 1 run diverged)"),
        (((2.0, 1e30),), " (log axis)"),
        (((2.0, 1.8, 1.5, 1.3, 1.1, 1.0), (2.0, 2.1, 2.2, 2.1, 2.0, 2.0)), ""),
        (((0.5, 0.5, 0.5, 0.5, 0.5),), ""),
    ],
)
def test_axis_of_losses_shows_their_difference(losses: tuple[tuple[float, ...], ...], note: str) -> None:
    assert curves.loss_axis(losses).note == note


def test_plots_say_how_axes_are_drawn_and_which_run_is_the_best(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [
        replace(
            RESULT,
            run=f"20261121-0546{at:02}-000{at}",
            name=f"_{name}$x$",
            train=replace(
                RESULT.train, loss=(90.0, 1.0, last), loss_by="step", samples_per_s=8000.0 + 100 * at
            ),
        )
        for at, (name, last) in enumerate((("slow", 0.5), ("fast", 0.25)))
    ]
    plots.write_plot(runs, tmp_path / "a.svg")
    losses, speed = ((tmp_path / name).read_text() for name in ("a.svg", "a-speed.svg"))
    for words in ("training loss (log axis)", "_slow$x$", "_fast$x$ (best)", "step"):
        assert f"<!-- {words} -->" in losses.replace("<!--  _", "<!-- _"), words
    assert losses.index("_slow$x$ -->") < losses.index("_fast$x$ (best) -->")
    assert "<!-- speed (axis begins at 7,975) -->" in speed
    assert "<!-- 8,100 -->" in speed


def test_write_plot_refuses_unknown_file_type(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"\.png.*runs\.xls"):
        plots.write_plot([RESULT], tmp_path / "runs.xls")
    assert not list(tmp_path.iterdir())


def test_write_plot_without_matplotlib_advises_pip_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(Failed, match="pip install matplotlib"):
        plots.write_plot([RESULT], tmp_path / "runs.png")


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml")])
def test_write_plot_writes_png_pdf_and_svg(tmp_path: Path, name: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    faster = replace(RESULT, world_size=4, train=replace(RESULT.train, samples_per_s=15_000.0))
    for results in ([RESULT], [RESULT, faster, FAILED]):
        plots.write_plot(results, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
