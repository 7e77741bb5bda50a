"""Plots of results: losses, speeds, and the trials of searches."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuctl import text
from gpuctl.errors import Failed
from gpuctl.output_files import check_picture, new_figure, save_figure
from gpuctl.run_results.curves import jobs_of, loss_curve
from gpuctl.run_results.metric_names import is_held_out
from gpuctl.run_results.saved_results import differences, job_of
from inventories.runs.run import Result
from inventories.runs.search import Search
from inventories.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_SCALE_FROM = 50.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
LABEL_WIDTH = 60


def write_plot(results: Sequence[Result], path: Path) -> str:
    """Draw the runs: speed, the parts of a step's time, the loss by epoch, the trials of searches.

    A panel without values is left out. The file's suffix selects the format. Returns a sentence on the file. Raises
    Usage for another suffix, Failed without values or matplotlib, or if the file can't be written.
    """
    check_picture(path)
    shown = [panel for panel, has in PANELS if any(has(result) for result in results)]
    shown += _trial_panels(results)
    if not shown:
        raise Failed("No run has timings to draw. Name a run whose script reported its steps.")
    figure = new_figure(1 + 4 * len(shown), 4)
    for panel, axes in zip(shown, figure.subplots(1, len(shown), squeeze=False)[0], strict=True):
        panel(axes, results)
    save_figure(figure, path)
    return f"wrote {path}: a plot of {plural(len(results), 'run')}"


def _plot_speed(axes: "Axes", results: Sequence[Result]) -> None:
    """Draw samples/s against ranks, with a line for each job that ran on several layouts; else a bar for each run.

    The dashed line is the speed at which each rank adds as much as in the run with the fewest ranks.
    """
    timed = [result for result in results if result.train.samples_per_s]
    jobs: dict[tuple[str | None, ...], list[tuple[int, float]]] = {}
    for result in timed:
        jobs.setdefault(job_of(result), []).append((result.world_size, result.train.samples_per_s or 0.0))
    scaled = {job: points for job, points in jobs.items() if len({ranks for ranks, _ in points}) > 1}
    if not scaled:
        axes.set(title="speed", ylabel="samples/s", xlim=(-0.8, max(len(timed), 2) - 0.2))
        axes.bar(range(len(timed)), [result.train.samples_per_s or 0.0 for result in timed], color="#4a7fb0")
        _name_runs(axes, timed)
        return
    axes.set(title="speed", xlabel="ranks", ylabel="samples/s")
    first = {job_of(result): result for result in reversed(timed)}
    labels = dict(zip(first, differences(list(first.values()), layout=False), strict=True))
    for job, points in jobs.items():
        name = _plain(labels[job] or " ".join(part for part in job if part))
        axes.plot(*zip(*sorted(points), strict=True), "o-", label="measured" if len(jobs) == 1 else name)
    label: str | None = "ideal"
    for points in scaled.values():
        (fewest, speed), (largest, _) = min(points), max(points)
        axes.plot([fewest, largest], [speed, speed * largest / fewest], "--", color="gray", label=label)
        label = None
    axes.set_xticks(sorted({ranks for ranks, _ in itertools.chain.from_iterable(jobs.values())}))
    axes.set_ylim(bottom=0)
    axes.legend()


def _plot_share(axes: "Axes", results: Sequence[Result]) -> None:
    """Draw a bar a run: the parts of a step's time, of runs with known parts."""
    axes.set(title="a step's time", ylabel="share", ylim=(0, 1.2), xlim=(-0.8, max(len(results), 2) - 0.2))
    below = [0.0] * len(results)
    for name, color in (("compute", "#3a7d44"), ("communication", "#e0a458"), ("data", "#4a7fb0")):
        parts = [getattr(result.train.share, name) or 0.0 for result in results]
        axes.bar(range(len(results)), parts, bottom=below, label=name, color=color)
        below = [low + part for low, part in zip(below, parts, strict=True)]
    _name_runs(axes, results)
    axes.legend(loc="upper center", ncols=3)


def _name_runs(axes: "Axes", results: Sequence[Result]) -> None:
    """Write each run's name below its bar."""
    slant: dict[str, Any] = {"rotation": 30, "ha": "right"} if len(results) > 3 else {}
    axes.set_xticks(range(len(results)), _labels(results), **slant)


def _plot_loss(axes: "Axes", results: Sequence[Result]) -> None:
    """A line a job that has losses, through all of its runs; where one resumes another, it has a mark."""
    from matplotlib.ticker import MaxNLocator

    jobs = [(runs, *loss_curve(runs)) for runs in jobs_of(results)]
    jobs = [(runs, curve, began) for runs, curve, began in jobs if curve]
    labels = _labels([runs[-1] for runs, _, _ in jobs])
    for label, (runs, curve, began) in zip(labels, jobs, strict=True):
        label += f", {len(runs)} runs" if len(runs) > 1 else ""
        (line,) = axes.plot(list(curve), list(curve.values()), "o-", markersize=3, label=label)
        resumed = [place for place in began if place in curve]
        marks = [curve[place] for place in resumed]
        axes.plot(resumed, marks, "|", markersize=14, color=line.get_color())
    units = dict.fromkeys(runs[-1].train.loss_by or "epoch" for runs, _, _ in jobs)
    trained = not any(is_held_out(runs[-1].train.loss_name or "") for runs, _, _ in jobs)
    axes.set(title="training loss" if trained else "loss", xlabel=" or ".join(units))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    losses = [loss for _, curve, _ in jobs for loss in curve.values() if math.isfinite(loss)]
    if losses and min(losses) > 0 and max(losses) / min(losses) >= LOG_SCALE_FROM:
        axes.set_yscale("log")
    axes.legend()


def _trial_panels(results: Sequence[Result]) -> Iterator["Callable[[Axes, Sequence[Result]], None]"]:
    """Return what draws the trials of each search: the metric against each parameter."""
    for search in (result.search for result in results if result.search):
        trials = [trial for trial in search.trials if trial.value is not None]
        for name in dict.fromkeys(name for trial in trials for name in trial.params):
            yield partial(_plot_trials, search=search, name=name)


def _plot_trials(axes: "Axes", _: Sequence[Result], *, search: Search, name: str) -> None:
    """Draw the metric of each trial against one parameter; the best trial has a ring."""
    points = {
        trial.trial: (trial.params[name], trial.value)
        for trial in search.trials
        if name in trial.params and trial.value is not None
    }
    values = [value for value, _ in points.values()]
    numbers = all(isinstance(value, int | float) for value in values)
    if not numbers:
        points = {trial: (str(value), metric) for trial, (value, metric) in points.items()}
    axes.plot(*zip(*points.values(), strict=True), "o", color="#4a7fb0")
    if search.best and search.best.trial in points:
        axes.plot(
            *([part] for part in points[search.best.trial]), "o", markersize=12, fillstyle="none",
            color="#3a7d44", label=f"best: trial {search.best.trial}",
        )  # fmt: skip
        axes.legend()
    if numbers and min(values) > 0 and max(values) / min(values) >= LOG_SCALE_FROM:
        axes.set_xscale("log")
    axes.set(
        title=f"{plural(len(points), 'trial')}",
        xlabel=text.clean(name),
        ylabel=text.clean(search.metric),
    )


PANELS: tuple[tuple["Callable[[Axes, Sequence[Result]], None]", Callable[[Result], bool]], ...] = (
    (_plot_speed, lambda result: bool(result.train.samples_per_s)),
    (_plot_share, lambda result: any(vars(result.train.share).values())),
    (_plot_loss, lambda result: bool(result.train.loss)),
)
"""(what draws a panel, whether a run has something for it)"""


def _plain(label: str) -> str:
    """Return a label in which matplotlib reads no formula, and which it shows in a legend."""
    label = text.shorten(text.clean(label), LABEL_WIDTH).replace("$", r"\$")
    return f" {label}" if label.startswith("_") else label


def _labels(results: Sequence[Result]) -> list[str]:
    """Return a label for each run: `lr 0.1, 3fa9`, or `2 ranks, 3fa9` if the runs have the same settings."""
    return [
        _plain(f"{shown or plural(result.world_size, 'rank')}, {result.run.rsplit('-', 1)[-1]}")
        for result, shown in zip(results, differences(results), strict=True)
    ]
