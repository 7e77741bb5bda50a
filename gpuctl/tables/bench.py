"""A bench for people: the table, where the time goes as a picture, the forecast, the bottleneck.

Imports rich: import this module where you print.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from gpuctl import text
from gpuctl.scaling.bottleneck import bottleneck, comparable, contradicting, doubts
from gpuctl.scaling.forecast import Forecast, Outlook, Range
from gpuctl.scaling.measurements import Measured, title_of
from gpuctl.tables.layout import STEP_PARTS, FittedTable, bar_of
from inventories.text import dollars, plural

Row = TypeVar("Row")

PICTURE_WIDTH = 48
TIMES = "{:.2f} x"


def bench_table(measured: Sequence[Measured], outlooks: Sequence[Outlook] = ()) -> RenderableType:
    """Show a bench. `measured` has at least one layout."""
    parts: list[RenderableType] = [layouts_table(measured)]
    if all(point.by_epoch for point in measured):
        parts += ["", Picture(measured)]
    if outlooks:
        parts += ["", forecast_table(outlooks), *(Text(note, "dim") for note in forecast_notes(outlooks))]
    finding = bottleneck(measured)
    sentences = ([f"{finding.sentence} {finding.advice}"] if finding else []) + doubts(measured)
    if sentences:
        parts += ["", *map(Text, sentences)]
    return Group(*parts)


def layouts_table(measured: Sequence[Measured]) -> RenderableType:
    """A line a layout; columns of which nothing is known are left out."""
    first, sound, wrong = measured[0], comparable(measured), contradicting(measured)
    columns: dict[str, Callable[[Measured], str]] = {
        "layout": lambda point: point.layout.name,
        "epoch": lambda point: text.duration(point.epoch_s if point.by_epoch else None),
        "spread": lambda point: text.percent(point.spread),
        f"{first.unit}/s": lambda point: speed(point.samples_per_s),
        "speed-up": lambda point: text.known(point.speed_up(first) if point in sound else None, TIMES),
        "efficiency": lambda point: text.percent(point.efficiency(first) if point in sound else None),
        "data": lambda point: text.percent(point.share.data, 0),
        "compute": lambda point: text.percent(point.share.compute, 0),
        "comm.": lambda point: text.percent(point.share.communication, 0),
        "$/epoch": lambda point: usd(point.epoch_usd),
    }
    if wrong:
        columns["remark"] = lambda point: "disturbed" if point in wrong else ""
    table = _table(
        columns,
        measured,
        optional=("spread", "data", "compute", f"{first.unit}/s", "comm.", "$/epoch", "efficiency"),
    )
    about = title_of(measured)
    counts = sorted({len(point.repetitions) for point in measured})
    of = plural(counts[0], "run") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs"
    note = f"median of {of}; spread: from the fastest to the slowest; speed-up over {first.layout.name}"
    if any(each.from_log for point in measured for each in point.repetitions):
        note += f"; {first.unit} counted in rank 0's log, over whole runs with their start"
    return Group(*([Text(about, "bold")] if about else []), table, Text(note, "dim"))


def speed(per_s: float) -> str:
    """`3,049`, `0.27`: few a second need their decimals."""
    return text.count(per_s) if per_s >= 100 else f"{per_s:.3g}"


def _table(
    columns: Mapping[str, Callable[[Row], str]], rows: Sequence[Row], optional: Sequence[str]
) -> RenderableType:
    """A line a row."""
    left = ("layout", "forecast", "overlap", "remark")
    return FittedTable(
        columns,
        [[cell(row) for cell in columns.values()] for row in rows],
        right=[name for name in columns if name not in left],
        optional=optional,
        gap=1,
    )


class Picture:
    """A bar a layout: an epoch's time, divided into its parts. The longest bar takes the full width."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.measured = measured

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        longest = max(point.epoch_s for point in self.measured)
        label = max(len(point.layout.name) for point in self.measured)
        times = max(len(text.duration(point.epoch_s)) for point in self.measured)
        width = max(min(PICTURE_WIDTH, options.max_width - label - times - 3), 1)
        for point in self.measured:
            line = Text(f"{point.layout.name:>{label}}  ")
            size = max(round(width * point.epoch_s / longest), 1)
            for character, style, count in (
                bar_of(point.share, size) if point.share.known else [("━", "", size)]
            ):
                line.append(character * count, style)
            yield line.append(f" {text.duration(point.epoch_s)}")
        legend = Text(" " * (label + 2))
        for name, character, style in STEP_PARTS:
            legend.append(f"{character} ", style)
            legend.append(f"{name}   ", "dim")
        legend.rstrip()
        yield legend


def forecast_table(outlooks: Sequence[Outlook]) -> RenderableType:
    """Show two lines a layout: with full overlap of averaging and backward pass, and without overlap."""
    columns: dict[str, Callable[[_End], str]] = {
        "forecast": lambda end: end.of.layout.name if end.full else "",
        "overlap": lambda end: "full" if end.full else "none",
        "step": lambda end: text.milliseconds(end.value(end.of.step_ms)),
        "epoch": lambda end: text.duration(end.value(end.of.epoch_s)),
        "samples/s": lambda end: text.count(end.value(end.of.samples_per_s)),
        "speed-up": lambda end: text.known(end.value(end.of.speed_up), TIMES),
        "efficiency": lambda end: text.percent(end.value(end.of.efficiency)),
        "$/epoch": lambda end: usd(end.value(end.of.epoch_usd)),
        "measured": lambda end: text.duration(
            end.of.measured.epoch_s if end.of.measured and end.full else None
        ),
    }
    ends = [_End(of=outlook, full=full) for outlook in outlooks if outlook.forecast for full in (True, False)]
    optional = ("step", "samples/s", "measured", "efficiency", "$/epoch")
    return _table(columns, ends, optional) if ends else Text("no forecast")


@dataclass(frozen=True, kw_only=True)
class _End:
    """An end of a forecast's ranges."""

    of: Outlook
    full: bool

    def value(self, range_: Range | None) -> float | None:
        """The range's value at this end."""
        return None if range_ is None else range_.fast if self.full else range_.slow


def forecast_notes(outlooks: Sequence[Outlook]) -> list[str]:
    """Return sentences on the ranges: their meaning, their base, and the reason for a missing range."""
    bases = [
        f"{row.layout.name} from the steps of {row.base.layout.name}" for row in outlooks if row.forecast
    ]
    notes = []
    if bases:
        notes.append(
            "overlap: of the gradients' averaging with the backward pass; each rank keeps its batch; "
            + ", ".join(bases)
        )
    notes += [_of_link(row.forecast) for row in outlooks if row.forecast and row.forecast.bandwidth]
    notes += [f"{row.layout.name}: {row.why}" for row in outlooks if row.why]
    return list(dict.fromkeys(notes))


def _of_link(predicted: Forecast) -> str:
    link = predicted.bandwidth
    assert link is not None
    waiting = f"{link.hop_s * 1e6:,.0f} µs a hop for each of {plural(predicted.buckets, 'bucket')}"
    if link.source == "shape":
        return (
            f"counts with the {link.gb_s:.3g} GB/s that the vendor names, at the slow end with half of it and "
            f"{waiting}; two nodes would measure it"
        )
    return f"counts with {link.gb_s:.3g} GB/s a link and direction, as {link.source}, at the slow end with {waiting}"


def usd(value: float | None) -> str:
    """`free`, `$0.0042`, `$1.25`: an epoch may cost less than a cent."""
    if value is None or value == 0 or value >= 1:
        return text.dollars(value)
    return dollars(value)
