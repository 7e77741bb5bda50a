"""A bench as a picture: the speed against the ranks, with what was foretold, and what an epoch's time goes into."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl import text
from gpuctl.run_results.curves.plot_files import new_figure, save_figure
from gpuctl.scaling.bottleneck import contradicting
from gpuctl.scaling.forecast import Outlook
from gpuctl.scaling.measurements import Layout, Measured, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"compute": "#3a7d44", "communication": "#e0a458", "data": "#4a7fb0", "epoch": "#7a7a7a"}


def write_bench_plot(measured: Sequence[Measured], outlooks: Sequence[Outlook], path: Path) -> str:
    """Draw it; `measured` has at least one layout. Replaces the file; says that it did.

    Raises Failed without matplotlib, or where the file can't be written.
    """
    figure = new_figure(11, 4.2)
    by_epoch = all(one.by_epoch for one in measured)
    panels = figure.subplots(1, 2 if by_epoch else 1, squeeze=False)[0]
    # Between two dollars matplotlib would read a formula.
    figure.suptitle(
        "; ".join(filter(None, (title_of(measured), "layouts: nodes x processes"))).replace("$", r"\$")
    )
    _plot_speed(panels[0], measured, outlooks)
    if by_epoch:
        _plot_epoch(panels[1], measured)
    save_figure(figure, path)
    return f"wrote {path}: a plot of {text.plural(len(measured), 'layout')}"


def _plot_speed(axes: "Axes", measured: Sequence[Measured], outlooks: Sequence[Outlook]) -> None:
    """Each layout's median speed and range, the forecasts' ranges, and the ideal; what lies above it is marked."""
    axes.set(title="speed", xlabel="ranks", ylabel=f"{measured[0].unit}/s")
    wrong, first = contradicting(measured), measured[0]
    points = sorted(measured, key=lambda one: one.layout.world_size)
    ranks, speeds = [one.layout.world_size for one in points], [one.samples_per_s for one in points]
    below = [one.samples_per_s - min(each.samples_per_s for each in one.repetitions) for one in points]
    above = [max(each.samples_per_s for each in one.repetitions) - one.samples_per_s for one in points]
    axes.errorbar(ranks, speeds, yerr=[below, above], fmt="o-", capsize=3, label="measured")
    for one in points:
        is_above = first not in wrong and one.efficiency(first) > 1
        remark = " (disturbed)" if one in wrong else " (above ideal)" if is_above else ""
        _name(axes, one.layout, one.samples_per_s, remark)
    axes.plot(
        [one.layout.world_size for one in wrong], [one.samples_per_s for one in wrong], "o", markersize=11,
        fillstyle="none", color="#b0413e", label="disturbed" if wrong else None,
    )  # fmt: skip
    label: str | None = "forecast: no .. full overlap"
    foretold = [(one.layout, one.samples_per_s, one.measured) for one in outlooks if one.samples_per_s]
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
    """Write a layout's name beside its point."""
    at = (layout.world_size, speed)
    axes.annotate(layout.name + remark, at, textcoords="offset points", xytext=(6, -10), fontsize=8)


def _plot_epoch(axes: "Axes", measured: Sequence[Measured]) -> None:
    """A bar a layout: its time an epoch, split where the shares are known; what it costs above it."""
    axes.set(title="an epoch", ylabel="seconds", xlim=(-0.8, max(len(measured), 2) - 0.2))
    places = range(len(measured))
    below = [0.0] * len(measured)
    parts = [{"epoch": 1.0} if one.share.compute is None else _shares(one) for one in measured]
    for name, color in COLORS.items():
        heights = [one.epoch_s * part.get(name, 0.0) for one, part in zip(measured, parts, strict=True)]
        if any(heights):
            axes.bar(places, heights, bottom=below, label=name, color=color)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    for place, one in zip(places, measured, strict=True):
        cost = f"\n\\${one.epoch_usd:.2g}" if one.epoch_usd else ""
        axes.annotate(
            text.duration(one.epoch_s) + cost, (place, one.epoch_s), textcoords="offset points", xytext=(0, 3),
            ha="center", fontsize=8,
        )  # fmt: skip
    axes.set_xticks(places, [one.layout.name for one in measured])
    axes.margins(y=0.25)
    axes.legend(loc="upper right")


def _shares(one: Measured) -> dict[str, float]:
    share = one.share
    return {
        "compute": share.compute or 0.0,
        "communication": share.communication or 0.0,
        "data": share.data or 0.0,
    }
