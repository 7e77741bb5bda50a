"""Plots of results: losses, speeds, and the trials of searches.

Runs differ by marker and line, too, not by color alone, so that a print in black and white shows them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuctl import text
from gpuctl.errors import Failed
from gpuctl.output_files import check_picture, new_figure, save_figure
from gpuctl.run_results.best import best_of
from gpuctl.run_results.curves import LOG_SCALE_FROM, drawable, jobs_of, legends_of, loss_axis, loss_curve
from gpuctl.run_results.metric_names import is_held_out
from gpuctl.run_results.repeats import series_of
from gpuctl.run_results.saved_results import differences, job_of, labels_of
from inventories.runs.result import Result
from inventories.runs.search import Search, Trial
from inventories.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw: TypeAlias = "Callable[[Axes], None]"
LABEL_WIDTH = 60
COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00",
    "#56b4e9", "#7a5195", "#8c564b", "#666666", "#1b7837", "#a50026",
)  # fmt: skip
MARKERS = "osD^vPX*<>hp"
LINES = ("-", "--", "-.", ":", (0, (8, 2, 2, 2, 2, 2)))
"""A number without a common divisor with that of markers, so that lines with one marker differ without color."""
PARTS = (
    ("compute", "#3a7d44", ""),
    ("communication", "#e0a458", "////"),
    ("data", "#4a7fb0", "...."),
)
"""(part of a step's time, its color, its pattern)"""
MARKS = 8
"""Markers on a line, about."""
CUT_FROM = 0.5
"""Ratio of the slowest to the fastest speed from which the axis begins above zero."""


def write_plot(results: Sequence[Result], path: Path) -> str:
    """Draw the runs: a picture of losses, one of speeds and of the parts of steps, one of the trials of searches.

    The first picture with values is the file, the others have its name with `-speed` or `-trials`. The suffix selects
    the format. Returns a sentence on the files. Raises Usage for another suffix, Failed without values or matplotlib,
    or if a file can't be written.
    """
    check_picture(path)
    figures = {
        name: figure
        for name, draw in (("losses", _draw_losses), ("speed", _draw_speeds), ("trials", _draw_trials))
        if (figure := draw(results)) is not None
    }
    if not figures:
        raise Failed("No run has timings to draw. Name a run whose script reported its steps.")
    written: list[str] = []
    for name, figure in figures.items():
        file = path.with_stem(f"{path.stem}-{name}") if written else path
        save_figure(figure, file)
        written.append(f"{file} ({name})")
    return f"wrote {' and '.join(written)}: {plural(len(results), 'run')}"


def _draw_losses(results: Sequence[Result]) -> "Figure | None":
    """Draw a line a job, through all of its runs; where one resumes another, it has a mark."""
    from matplotlib.ticker import MaxNLocator

    jobs = [(runs, *loss_curve(runs)) for runs in jobs_of(results)]
    jobs = [(runs, curve, began) for runs, curve, began in jobs if curve]
    if not jobs:
        return None
    figure = new_figure(10, max(4.5, 2 + 0.25 * len(jobs)))
    axes = figure.subplots()
    last = [runs[-1] for runs, _, _ in jobs]
    best = best_of(last) if len(jobs) > 1 else None
    lines = []
    labels = [_plain(label) for label in labels_of(last)]
    series = series_of(last, labels, best.result.run if best else None)
    curves = [list(curve.values()) for _, curve, _ in jobs]
    axis = loss_axis(curves)
    legends = legends_of(series, curves, axis)
    for at, (shown, legend, (runs, curve, began)) in enumerate(zip(series, legends, jobs, strict=True)):
        label = legend + f", {len(runs)} runs" * (len(runs) > 1 and bool(legend))
        is_best = best is not None and runs[-1] is best.result
        every = max(1, len(curve) // MARKS)
        (line,) = axes.plot(
            list(curve), list(curve.values()), markersize=5, **_style(shown.style), linewidth=3 if is_best else 1.4,
            markevery=(at % every, every), label=f"{label} (best)" if is_best else label or "_",
        )  # fmt: skip
        end = [*curve.values()][-1]
        lines.append((end if math.isfinite(end) else math.inf, line))
        resumed = [place for place in began if place in curve]
        axes.plot(resumed, [curve[place] for place in resumed], "|", markersize=14, color=line.get_color())
    if axis.log:
        axes.set_yscale("log")
    if axis.top is not None:
        lowest = min(loss for _, curve, _ in jobs for loss in curve.values() if math.isfinite(loss))
        axes.set_ylim(lowest / 1.05 if axis.log else lowest - (axis.top - lowest) / 20, axis.top)
    trained = not any(is_held_out(run.train.loss_name or "") for run in last)
    axes.set(
        title=f"{'training loss' if trained else 'loss'}{axis.note}",
        xlabel=" or ".join(dict.fromkeys(run.train.loss_by or "epoch" for run in last)),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    # As the lines end, from the top.
    ordered = [line for _, line in sorted(lines, key=lambda item: -item[0]) if line.get_label() != "_"]
    figure.legend(handles=ordered, loc="outside right center", handlelength=4)
    return figure


def _style(at: int) -> dict[str, Any]:
    """Return color, marker and line number `at`."""
    return {
        "marker": MARKERS[at % len(MARKERS)],
        "linestyle": LINES[at % len(LINES)],
        "color": COLORS[at % len(COLORS)],
    }


def _draw_speeds(results: Sequence[Result]) -> "Figure | None":
    """Draw samples/s, and the parts of a step's time of the runs that have them."""
    timed = [result for result in results if drawable(result.train.samples_per_s or 0.0) > 0]
    with_parts = [result for result in results if any(vars(result.train.share).values())]
    panels: list[Draw] = []
    if timed:
        panels.append(
            partial(_plot_scaling, results=timed) if _layouts(timed) else partial(_plot_speed, results=timed)
        )
    if with_parts:
        panels.append(partial(_plot_share, results=with_parts))
    return _figure(panels, height=max(4.0, 1.6 + 0.4 * len(results))) if panels else None


def _figure(panels: Sequence[Draw], height: float) -> "Figure":
    """Draw panels in a row."""
    figure = new_figure(1 + 6 * len(panels), height)
    for draw, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        draw(axes)
    return figure


def _layouts(timed: Sequence[Result]) -> dict[tuple[str | None, ...], list[tuple[int, float]]]:
    """Return ranks and speeds of each job, if a job ran on several numbers of ranks. Empty: no job did."""
    jobs: dict[tuple[str | None, ...], list[tuple[int, float]]] = {}
    for result in timed:
        jobs.setdefault(job_of(result), []).append((result.world_size, result.train.samples_per_s or 0.0))
    return jobs if any(len({ranks for ranks, _ in points}) > 1 for points in jobs.values()) else {}


def _plot_scaling(axes: "Axes", *, results: Sequence[Result]) -> None:
    """Draw samples/s against ranks, with a line for each job.

    The gray line is the speed at which each rank adds as much as in the run with the fewest ranks.
    """
    jobs = _layouts(results)
    axes.set(title="speed", xlabel="ranks", ylabel="samples/s")
    first = {job_of(result): result for result in reversed(results)}
    names = dict(zip(first, differences(list(first.values()), layout=False), strict=True))
    ideal: str | None = "ideal"
    for at, (job, points) in enumerate(jobs.items()):
        name = _plain(names[job] or " ".join(part for part in job if part))
        axes.plot(
            *zip(*sorted(points), strict=True), **_style(at), label="measured" if len(jobs) == 1 else name,
        )  # fmt: skip
        (fewest, speed), (largest, _) = min(points), max(points)
        if fewest < largest:
            axes.plot([fewest, largest], [speed, speed * largest / fewest], "--", color="gray", label=ideal)
            ideal = None
    axes.set_xticks(sorted({ranks for ranks, _ in itertools.chain.from_iterable(jobs.values())}))
    axes.set_ylim(bottom=0)
    axes.legend()


def _plot_speed(axes: "Axes", *, results: Sequence[Result]) -> None:
    """Draw a dot for each run, with its number; from zero, or from where the speeds begin to differ."""
    speeds = [result.train.samples_per_s or 0.0 for result in results]
    lowest, highest = min(speeds), max(speeds)
    is_cut = lowest > CUT_FROM * highest and lowest < highest
    begin = max(0.0, lowest - 0.25 * (highest - lowest)) if is_cut else 0.0
    if not is_cut:  # a line from another place than zero would be read as a bar
        axes.hlines(range(len(speeds)), begin, speeds, color="#bbbbbb")
    axes.grid(alpha=0.3)
    axes.plot(speeds, range(len(speeds)), "o", color=COLORS[0], markersize=8)
    for at, speed in enumerate(speeds):
        axes.annotate(text.count(speed), (speed, at), (8, 0), textcoords="offset points", va="center")
    note = f" (axis begins at {text.count(begin)})" if is_cut else ""
    axes.set(title=f"speed{note}", xlabel="samples/s", xlim=(begin, highest + 0.3 * (highest - begin or 1.0)))
    _name_runs(axes, results)


def _plot_share(axes: "Axes", *, results: Sequence[Result]) -> None:
    """Draw a bar a run: the parts of a step's time."""
    axes.set(xlabel="share", xlim=(0, 1))
    axes.set_title("a step's time", pad=30)
    left = [0.0] * len(results)
    for name, color, pattern in PARTS:
        parts = [getattr(result.train.share, name) or 0.0 for result in results]
        axes.barh(
            range(len(results)), parts, left=left, label=name, color=color, hatch=pattern, edgecolor="white",
            height=0.6,
        )  # fmt: skip
        left = [before + part for before, part in zip(left, parts, strict=True)]
    _name_runs(axes, results)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)


def _name_runs(axes: "Axes", results: Sequence[Result]) -> None:
    """Label the rows with the names of the runs, the first on top."""
    axes.set_yticks(range(len(results)), [_plain(label) for label in labels_of(results)])
    axes.set_ylim(max(len(results), 2) - 0.4, -0.6)


def _draw_trials(results: Sequence[Result]) -> "Figure | None":
    """Draw the trials of each search: the metric against each parameter."""
    panels: list[Draw] = []
    for search in (result.search for result in results if result.search):
        trials = [trial for trial in search.trials if trial.value is not None]
        names = dict.fromkeys(name for trial in trials for name in trial.params)
        panels += [partial(_plot_trials, search=search, trials=trials, name=name) for name in names]
    return _figure(panels, height=4.0) if panels else None


def _plot_trials(axes: "Axes", *, search: Search, trials: Sequence[Trial], name: str) -> None:
    """Draw the metric of each trial against one parameter; the best trial has a ring."""
    points = {trial.trial: (trial.params[name], trial.value) for trial in trials if name in trial.params}
    values = [value for value, _ in points.values()]
    numbers = all(isinstance(value, int | float) for value in values)
    if not numbers:
        points = {trial: (str(value), metric) for trial, (value, metric) in points.items()}
    axes.plot(*zip(*points.values(), strict=True), "o", color="#4a7fb0")
    if search.best and search.best.trial in points:
        value, metric = points[search.best.trial]
        best = f"best: trial {search.best.trial}"
        axes.plot([value], [metric or 0.0], "o", markersize=12, fillstyle="none", color="#3a7d44", label=best)
        axes.legend()
    if numbers and min(values) > 0 and max(values) / min(values) >= LOG_SCALE_FROM:
        axes.set_xscale("log")
    axes.set(
        title=f"{plural(len(points), 'trial')}",
        xlabel=text.clean(name),
        ylabel=text.clean(search.metric),
    )


def _plain(label: str) -> str:
    """Return a label in which matplotlib reads no formula, and which it shows in a legend."""
    label = text.shorten(text.clean(label), LABEL_WIDTH).replace("$", r"\$")
    return f" {label}" if label.startswith("_") else label
