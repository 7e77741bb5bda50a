"""Curves of runs: the losses of a job, and each line that a run measured."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuctl.run_results.metric_names import epoch_of, flat, kind_of, losses_of, number, step_of
from gpuctl.run_results.rank_metrics import METRICS_KEPT, is_name
from gpuctl.run_results.read_run import rank_metrics
from gpuctl.run_results.repeats import Series
from gpuctl.run_results.saved_results import earlier_of, launch_of
from inventories.disk.store import RunFolder
from inventories.runs.result import Result
from inventories.text import plural

LOG_SCALE_FROM = 10.0
"""Ratio of the largest to the smallest loss from which an axis is logarithmic."""
FIRST_STEPS = 5
"""The first fifth of a curve is its first steps."""
MIN_HEIGHT = 0.4
"""Minimum part of an axis for all later steps: with less, the axis is cut."""
MARGIN = 0.15
DIVERGED = 10.0
"""A run that ends with this many times the loss with which the runs began has diverged."""
LARGEST, SMALLEST = 1e39, 1e-39
"""Sizes of numbers in charts, about those of 32 bits: beyond them ratios overflow, and labels have no place."""
UNMEASURED = frozenset({"time", "rank", "local_rank", "world_size"})
"""Names of a line that are no measured values."""


def jobs_of(results: Sequence[Result]) -> list[list[Result]]:
    """Return the runs of each job, oldest first: the named runs, and the runs that they resumed. Each job once."""
    jobs = [[*earlier_of(result), result] for result in results]
    earlier = {run.run for runs in jobs for run in runs[:-1]}
    return list({runs[-1].run: runs for runs in jobs if runs[-1].run not in earlier}.values())


def drawable(value: float) -> float:
    """Return a number as charts can have it: NaN for one beyond their size, zero for one that is almost zero."""
    if not abs(value) <= LARGEST:
        return math.nan
    return value if abs(value) >= SMALLEST else 0.0


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
        points = zip(places, map(drawable, train.loss), strict=False)
        curve |= {place: loss for place, loss in points if abs(place) <= LARGEST}
    return curve, began


@dataclass(frozen=True, kw_only=True)
class LossAxis:
    """An axis that shows the differences between the losses of runs."""

    log: bool = False
    top: float | None = None
    """The loss above which it is cut, a round number. `None`: it is whole."""
    diverged: int = 0
    """Curves that leave it for good."""

    @property
    def note(self) -> str:
        """Return the words for its title, such as ` (log axis)`. Empty: it is a plain axis."""
        cut = f"cut above {self.top:.6g}" if self.top is not None else ""
        cut += f" where {plural(self.diverged, 'run')} diverged" if self.diverged else ""
        words = ", ".join(filter(None, ["log axis" if self.log else "", cut]))
        return f" ({words})" if words else ""


def loss_axis(curves: Sequence[Sequence[float]]) -> LossAxis:
    """Return the axis for curves of losses.

    It is logarithmic if the losses differ by a factor, and cut if the first steps, or runs that diverged, take most
    of its height.
    """
    finite = [each for curve in curves if (each := [loss for loss in curve if math.isfinite(loss)])]
    if not finite:
        return LossAxis()
    usual = DIVERGED * statistics.median(curve[0] for curve in finite)
    steady = [curve for curve in finite if not curve[-1] > usual > 0] or finite
    diverged = len(finite) - len(steady)
    lowest = min(itertools.chain.from_iterable(finite))
    highest = max(itertools.chain.from_iterable(steady))
    log = lowest > 0 and highest / lowest >= LOG_SCALE_FROM
    height = math.log10 if log else float
    later = max(loss for curve in steady for loss in curve[len(curve) // FIRST_STEPS :])
    is_cut = height(later) - height(lowest) < MIN_HEIGHT * (height(highest) - height(lowest))
    if is_cut and later > lowest:
        top = later * (later / lowest) ** MARGIN if log else later + (later - lowest) * MARGIN
    else:
        top = highest
    if (step := top / 4 if log else (top - lowest) / 10) > 0:  # the next multiple of a round step
        step = round_step(step)
        top = round(math.ceil(top / step - 1e-9) * step, 6 - math.floor(math.log10(step)))
    is_whole = top >= max(itertools.chain.from_iterable(finite))
    return LossAxis(log=log) if is_whole else LossAxis(log=log, top=top, diverged=diverged)


def round_step(smallest: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten. `smallest`: more than zero."""
    power = 10.0 ** math.floor(math.log10(smallest))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= smallest * (1 - 1e-9))


def legends_of(series: Sequence[Series], curves: Sequence[Sequence[float]], axis: LossAxis) -> list[str]:
    """Return the legend of each line. If an axis shows no line of a style, the legend says why."""
    reasons = [_why_invisible(curve, axis) for curve in curves]
    visible = {line.style for line, reason in zip(series, reasons, strict=True) if not reason}
    return [
        f"{line.legend}, {reason}" if line.legend and line.style not in visible else line.legend
        for line, reason in zip(series, reasons, strict=True)
    ]


def _why_invisible(curve: Sequence[float], axis: LossAxis) -> str:
    """Return why an axis shows nothing of a curve. Empty: it shows a part."""
    finite = [loss for loss in curve if math.isfinite(loss)]
    if not finite:
        return "no finite loss"
    return "above the cut" if axis.top is not None and min(finite) > axis.top else ""


def points_of(result: Result) -> Iterator[dict[str, float]]:
    """Yield the values of each epoch or step of a run: `epoch`, `step`, `loss`, and others as `metrics.NAME`.

    The lowest rank with lines counts. Without metrics, the losses found elsewhere are yielded.
    """
    run = None if result.train.loss_from else launch_of(result)
    metrics = rank_metrics(RunFolder(Path(result.dir)), run) if run else {}
    # The lines on epochs of the built-in job, or all lines of a script.
    of_ranks = (metrics[rank].epochs or metrics[rank].measured for rank in sorted(metrics))
    lines = next(filter(None, of_ranks), ())
    name = result.train.loss_name or "loss"
    if lines:
        for line in lines:
            places = {"epoch": epoch_of(line), "step": step_of(line), "loss": losses_of(line).get(name)}
            measured = (
                (f"metrics.{metric}", value)
                for metric, raw in flat(line)
                if kind_of(metric) not in ("step", "epoch")
                and metric not in {*UNMEASURED, name}
                and is_name(metric)
                if (value := number(raw)) is not None
            )
            known = {key: value for key, value in places.items() if value is not None}
            yield known | dict(itertools.islice(measured, METRICS_KEPT))
    elif losses := result.train.loss:
        by = "step" if result.train.loss_by in ("step", "line") else "epoch"
        for place, loss in zip(result.train.loss_at or itertools.count(1), losses, strict=False):
            yield {by: place, "loss": loss}
