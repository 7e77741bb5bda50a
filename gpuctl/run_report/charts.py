"""Charts of a report as coordinates, which the template draws. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuctl import text
from gpuctl.run_results.curves import drawable, jobs_of, legends_of, loss_axis, loss_curve, round_step
from gpuctl.run_results.repeats import series_of
from inventories.runs.result import Result

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 40
"""Margins of the losses' chart, for its labels."""
COLORS, SHAPES = 12, 6
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "12 3 2 3 2 3")
"""A number without a common divisor with that of colors, so that lines with one shape differ without color."""
MARKS = 8
"""Markers on a line, about."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A mark of an axis."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """The losses of a job."""

    run: str
    """Id of its last run."""
    label: str
    legend: str
    """Empty: the line of another run of its setting has it."""
    style: int
    best: bool
    parts: tuple[str, ...]
    """Points as SVG has them; a loss that is no number ends a part."""
    marks: tuple[tuple[float, float], ...]
    end: float
    """The last loss."""


@dataclass(frozen=True, kw_only=True)
class LossChart:
    """The losses of runs against epochs or steps."""

    note: str
    unit: str
    lines: tuple[Line, ...]
    """As they end, the highest first."""
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of a chart: a value, or parts of a whole, as fractions of the width."""

    label: str
    parts: tuple[float, ...]
    shown: str
    best: bool


def loss_chart(results: Sequence[Result], labels: Sequence[str], best: str | None) -> LossChart | None:
    """Return the chart of losses; `None`: no run has one. `labels`: of the runs. `best`: id of the best run."""
    names = {result.run: label for result, label in zip(results, labels, strict=True)}
    jobs = [(runs[-1], curve) for runs in jobs_of(results) if (curve := loss_curve(runs)[0])]
    finite = [(place, loss) for _, curve in jobs for place, loss in curve.items() if math.isfinite(loss)]
    if not finite:
        return None
    curves = [list(curve.values()) for _, curve in jobs]
    axis = loss_axis(curves)
    places, losses = [place for place, _ in finite], [loss for _, loss in finite]
    lowest, highest = min(losses), max(losses) if axis.top is None else axis.top
    x_ticks = ticks(min(places), max(places), 8, whole=True)
    y_ticks = log_ticks(lowest, highest) if axis.log else ticks(lowest, highest, 6)
    x = _scale(min(places), max(places), LEFT, WIDTH - RIGHT)
    height: Callable[[float], float] = math.log10 if axis.log else float
    linear = _scale(height(lowest), height(highest), HEIGHT - BOTTOM - 8, TOP + 4)
    last = [run for run, _ in jobs]
    series = series_of(last, [names[run.run] for run in last], best)
    legends = legends_of(series, curves, axis)
    lines = []
    for at, (shown, legend, (run, curve)) in enumerate(zip(series, legends, jobs, strict=True)):
        points = [
            (x(place), linear(height(loss)) if math.isfinite(loss) else math.nan)
            for place, loss in curve.items()
        ]
        every = max(1, len(points) // MARKS)
        lines.append(
            Line(
                run=run.run,
                label=names[run.run],
                legend=legend,
                style=shown.style,
                best=run.run == best,
                parts=tuple(_parts(points)),
                marks=tuple(
                    (round(px, 1), round(py, 1))
                    for px, py in points[at % every :: every]
                    if TOP <= py <= HEIGHT - BOTTOM
                ),
                end=[*curve.values()][-1],
            )
        )
    return LossChart(
        note=axis.note,
        unit=" or ".join(dict.fromkeys(run.train.loss_by or "epoch" for run, _ in jobs)),
        lines=tuple(sorted(lines, key=lambda line: -line.end if math.isfinite(line.end) else -math.inf)),
        x_ticks=tuple(Tick(at=x(place), label=_number(place)) for place in x_ticks),
        y_ticks=tuple(Tick(at=linear(height(loss)), label=_number(loss)) for loss in y_ticks),
    )


def speed_chart(results: Sequence[Result], labels: Sequence[str]) -> list[Bar]:
    """Return a bar for each run with a speed, from zero; the fastest is the best."""
    speeds = [drawable(result.train.samples_per_s or 0.0) for result in results]
    fastest = max((speed for speed in speeds if speed > 0), default=0.0)
    return [
        Bar(
            label=label,
            parts=(speed / fastest,),
            shown=f"{text.count(speed)} samples/s",
            best=speed == fastest,
        )
        for label, speed in zip(labels, speeds, strict=True)
        if speed > 0
    ]


def share_chart(results: Sequence[Result], labels: Sequence[str]) -> list[Bar]:
    """Return a bar for each run with the parts of its step's time: compute, communication, data."""
    shares = [(label, result.train.share) for label, result in zip(labels, results, strict=True)]
    return [
        Bar(
            label=label,
            parts=tuple(max(0.0, part or 0.0) for part in (share.compute, share.communication, share.data)),
            shown=", ".join(
                text.percent(part, 0) for part in (share.compute, share.communication, share.data)
            ),
            best=False,
        )
        for label, share in shares
        if share.known
    ]


def ticks(low: float, high: float, max_count: int, *, whole: bool = False) -> list[float]:
    """Return up to `max_count` round numbers from `low` to `high`, 1, 2 or 5 apart. `whole`: no fractions."""
    if high <= low:
        return [low]
    step = round_step((high - low) / max_count)
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    digits = 6 - math.floor(math.log10(step))
    return [round(at * step, digits) for at in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten from `low` to `high`; over many decades only the powers."""
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    every = math.ceil((last - first + 1) / 8)
    powers = range(first, last + 1, every)
    return [at for power in powers for factor in factors if low <= (at := factor * 10.0**power) <= high]


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    """Return the linear map of `low` to `begin` and `high` to `end`. Without a range: to the middle."""
    if high <= low:
        return lambda _: (begin + end) / 2
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def _parts(points: Sequence[tuple[float, float]]) -> list[str]:
    parts: list[list[str]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            parts[-1].append(f"{x:.1f},{y:.1f}")
        elif parts[-1]:
            parts.append([])
    return [" ".join(part) for part in parts if part]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"
