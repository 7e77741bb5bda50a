"""Pictures of a bench: speed against ranks with forecasts, and the parts of an epoch's time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl import text
from gpuctl.output_files import new_figure, save_figure
from gpuctl.scaling.bottleneck import contradicting
from gpuctl.scaling.forecast import Outlook
from gpuctl.scaling.measurements import Layout, Measured, title_of
from inventories.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"compute": "#3a7d44", "communication": "#e0a458", "data": "#4a7fb0", "epoch": "#7a7a7a"}


def write_bench_plot(measured: Sequence[Measured], outlooks: Sequence[Outlook], path: Path) -> str:
    """Draw measured layouts (at least one) and forecasts. Replaces the file, and returns a line on it.

    Raises Failed without matplotlib, or if the file can't be written.
    """
    figure = new_figure(11, 4.2)
    by_epoch = all(point.by_epoch for point in measured)
    panels = figure.subplots(1, 2 if by_epoch else 1, squeeze=False)[0]
    # Between two dollars matplotlib would read a formula.
    figure.suptitle(
        "; ".join(filter(None, (title_of(measured), "layouts: nodes x processes"))).replace("$", r"\$")
    )
    _plot_speed(panels[0], measured, outlooks)
    if by_epoch:
        _plot_epoch(panels[1], measured)
    save_figure(figure, path)
    return f"wrote {path}: a plot of {plural(len(measured), 'layout')}"


def _plot_speed(axes: "Axes", measured: Sequence[Measured], outlooks: Sequence[Outlook]) -> None:
    """Draw each layout's median speed and range, the forecasts' ranges, and the ideal; mark points above it."""
    axes.set(title="speed", xlabel="ranks", ylabel=f"{measured[0].unit}/s")
    wrong, first = contradicting(measured), measured[0]
    points = sorted(measured, key=lambda point: point.layout.world_size)
    ranks, speeds = [point.layout.world_size for point in points], [point.samples_per_s for point in points]
    below = [point.samples_per_s - min(each.samples_per_s for each in point.repetitions) for point in points]
    above = [
        max(repetition.samples_per_s for repetition in point.repetitions) - point.samples_per_s
        for point in points
    ]
    axes.errorbar(ranks, speeds, yerr=[below, above], fmt="o-", capsize=3, label="measured")
    for point in points:
        is_above = first not in wrong and point.efficiency(first) > 1
        remark = " (disturbed)" if point in wrong else " (above ideal)" if is_above else ""
        _name(axes, point.layout, point.samples_per_s, remark)
    axes.plot(
        [point.layout.world_size for point in wrong], [point.samples_per_s for point in wrong], "o", markersize=11,
        fillstyle="none", color="#b0413e", label="disturbed" if wrong else None,
    )  # fmt: skip
    label: str | None = "forecast: no .. full overlap"
    foretold = [
        (point.layout, point.samples_per_s, point.measured) for point in outlooks if point.samples_per_s
    ]
    for layout, speed, known in foretold:
        ends = [speed.slow, speed.fast]
        axes.plot([layout.world_size] * 2, ends, "_-", color="#b0413e", markersize=10, label=label)
        label = None
        if known is None:
            _name(axes, layout, speed.fast)
    numbers = sorted({*ranks, *(layout.world_size for layout, _, _ in foretold)})
    if first not in wrong:
        a_rank = measured[0].samples_per_s / measured[0].layout.world_size
        axes.plot(numbers, [a_rank * number for number in numbers], "--", color="gray", label="ideal")
    axes.set_xticks(numbers)
    axes.set_ylim(bottom=0)
    axes.legend()


def _name(axes: "Axes", layout: Layout, speed: float, remark: str = "") -> None:
    """Annotate a point with its layout's name."""
    at = (layout.world_size, speed)
    axes.annotate(layout.name + remark, at, textcoords="offset points", xytext=(6, -10), fontsize=8)


def _plot_epoch(axes: "Axes", measured: Sequence[Measured]) -> None:
    """Draw a bar a layout: an epoch's time, divided by known shares, with its price on top."""
    axes.set(title="an epoch", ylabel="seconds", xlim=(-0.8, max(len(measured), 2) - 0.2))
    places = range(len(measured))
    below = [0.0] * len(measured)
    parts = [
        {"epoch": 1.0}
        if point.share.compute is None
        else {
            "compute": point.share.compute,
            "communication": point.share.communication or 0.0,
            "data": point.share.data or 0.0,
        }
        for point in measured
    ]
    for name, color in COLORS.items():
        heights = [point.epoch_s * part.get(name, 0.0) for point, part in zip(measured, parts, strict=True)]
        if any(heights):
            axes.bar(places, heights, bottom=below, label=name, color=color)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    for place, point in zip(places, measured, strict=True):
        cost = f"\n\\${point.epoch_usd:.2g}" if point.epoch_usd else ""
        axes.annotate(
            text.duration(point.epoch_s) + cost, (place, point.epoch_s), textcoords="offset points", xytext=(0, 3),
            ha="center", fontsize=8,
        )  # fmt: skip
    axes.set_xticks(places, [point.layout.name for point in measured])
    axes.margins(y=0.25)
    axes.legend(loc="upper right")
