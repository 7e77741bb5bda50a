"""Results as files: a CSV table, and a plot."""

import csv
import io
import itertools
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuctl import text
from gpuctl.errors import Failed, Usage
from gpuctl.output_files import check_file, check_picture, new_figure, save_figure, write_file
from gpuctl.run_results.metric_names import is_held_out
from gpuctl.run_results.saved_results import args_of, differences, earlier_of, job_of, options_of
from inventories.codec import to_json
from inventories.runs.run import Result
from inventories.runs.search import Search
from inventories.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_SCALE_FROM = 50.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
LABEL_WIDTH = 60
FIELDS: Mapping[str, tuple[str, ...]] = {
    "first_error": ("rank", "node", "message", "reason", "detail"),
    "usage": ("gpu_utilization", "cpu_utilization"),
    "commit": ("sha", "dirty"),
    "unused_metrics": ("lines", "rank", "example", "why"),
    "parts": ("start", "first_steps", "steps", "evaluation", "checkpoints", "end"),
    "first_step": ("imports", "device", "data", "model", "step"),
}
"""Columns of a part of a result, also if it is null."""


def write_csv(results: Sequence[Result], path: Path) -> str:
    """Write a line a run, and below a search's line one a trial; a column a value (`train.step_ms.p50`, …).

    Unknown values are empty. Replaces the file, and returns a sentence on it. Raises Usage for `-`, Failed if the
    file can't be written.
    """
    check_table(path)
    write_file(path, csv_text(results).encode())
    return f"wrote {path}: {plural(len(results), 'run')}"


def check_table(path: Path) -> None:
    """Raise Usage for a file that can't be written: before any work."""
    if str(path) == "-":
        raise Usage("The table is written to a file, not to stdout. Name the file, as in --csv runs.csv.")
    check_file(path)


def csv_text(results: Sequence[Result]) -> str:
    """Return the table as text, with a head. The script's arguments come last: a column each, and one with all."""
    rows = [row for result in results for row in (_row(result), *_trials(result))]
    names = dict.fromkeys(column for row in rows for column in row)
    columns = sorted(names, key=lambda name: (name == "args", name.startswith("args.")))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _row(result: Result) -> dict[str, Any]:
    # Each node's files and end are in the JSON alone: a column a node would make no table.
    document = to_json(replace(result, checkpoints={}, endings={}, search=None))
    args = args_of(result)
    trials = result.search
    search = {
        "search.metric": trials.metric if trials else None,
        "search.mode": trials.mode if trials else None,
        "search.best": trials.best.trial if trials and trials.best else None,
        "search.value": trials.best.value if trials and trials.best else None,
    }
    last = _cell(result.train.loss[-1]) if result.train.loss else None
    options = {f"args.{name}": value or "yes" for name, value in options_of(args).items()}
    return _flat(document) | {"train.last_loss": last} | search | options | {"args": shlex.join(args)}


def _trials(result: Result) -> Iterator[dict[str, Any]]:
    """A row for each trial of a search, with the run that it is of; only searches have the columns."""
    for trial in result.search.trials if result.search else ():
        document = {"run": result.run} | _flat(to_json(trial), "trial.")
        yield document | {"trial.trial": trial.trial}


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested document with dotted keys; lists of numbers are separated by blanks, other lists left out."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key in FIELDS:
            value = value or dict.fromkeys(FIELDS[key])
        if key in ("hang", "logged_error"):
            value = value and value["sentence" if key == "hang" else "message"]
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        elif not isinstance(value, list):
            flat[prefix + key] = value
        elif key not in ("ranks", "nodes", "outputs", "output_totals", "outside", "files", "search"):
            flat[prefix + key] = " ".join(map(_cell, value))
    return flat


def _cell(number: float | None) -> str:
    if number is None:
        return "nan"
    return str(number) if isinstance(number, int) else f"{number:.6g}"


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


def jobs_of(results: Sequence[Result]) -> list[list[Result]]:
    """Return the runs of each job, oldest first: the named runs, and the runs that they resumed. Each job once."""
    jobs = [[*earlier_of(result), result] for result in results]
    earlier = {run.run for runs in jobs for run in runs[:-1]}
    return list({runs[-1].run: runs for runs in jobs if runs[-1].run not in earlier}.values())


def loss_curve(runs: Sequence[Result]) -> tuple[dict[float, float], list[float]]:
    """Return a job's losses by epoch, or by step as its last run has them; and where later runs began.

    Work that a run repeated counts as repeated.
    """
    curve: dict[float, float] = {}
    began: list[float] = []
    by = runs[-1].train.loss_by or "epoch"
    for train in (run.train for run in runs if run.train.loss and (run.train.loss_by or "epoch") == by):
        first = (train.epochs_before or 0) + 1
        places = train.loss_at or range(first, first + len(train.loss))
        if curve:
            began.append(places[0])
        curve = {place: loss for place, loss in curve.items() if place < places[0]}
        curve |= zip(places, train.loss, strict=False)
    return curve, began


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
