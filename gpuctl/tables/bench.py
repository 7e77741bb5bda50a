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
from gpuctl.tables.layout import FittedTable
from inventories import money

Row = TypeVar("Row")

PICTURE_WIDTH = 48
PARTS = (("compute", "█", "green"), ("communication", "▓", "yellow"), ("data", "░", "cyan"))
"""(part of a step, its character, its style), …"""


def bench_table(measured: Sequence[Measured], outlooks: Sequence[Outlook] = ()) -> RenderableType:
    """All of a bench; `measured` has at least one layout."""
    parts: list[RenderableType] = [layouts_table(measured)]
    if all(one.by_epoch for one in measured):
        parts += ["", Picture(measured)]
    if outlooks:
        parts += ["", forecast_table(outlooks), *(Text(note, "dim") for note in forecast_notes(outlooks))]
    found = bottleneck(measured)
    said = ([f"{found.sentence} {found.advice}"] if found else []) + doubts(measured)
    if said:
        parts += ["", *map(Text, said)]
    return Group(*parts)


def layouts_table(measured: Sequence[Measured]) -> RenderableType:
    """A line a layout; columns of which nothing is known are left out."""
    first, sound, wrong = measured[0], comparable(measured), contradicting(measured)
    columns: dict[str, Callable[[Measured], str]] = {
        "layout": lambda one: one.layout.name,
        "epoch": lambda one: text.duration(one.epoch_s if one.by_epoch else None),
        "spread": lambda one: text.percent(one.spread),
        f"{first.unit}/s": lambda one: speed(one.samples_per_s),
        "speed-up": lambda one: _times(one.speed_up(first) if one in sound else None),
        "efficiency": lambda one: text.percent(one.efficiency(first) if one in sound else None),
        "data": lambda one: _share(one.share.data),
        "compute": lambda one: _share(one.share.compute),
        "comm.": lambda one: _share(one.share.communication),
        "$/epoch": lambda one: usd(one.epoch_usd),
    }
    if wrong:
        columns["remark"] = lambda one: "disturbed" if one in wrong else ""
    table = _table(
        columns,
        measured,
        least=("spread", "data", "compute", f"{first.unit}/s", "comm.", "$/epoch", "efficiency"),
    )
    about = title_of(measured)
    counts = sorted({len(one.repetitions) for one in measured})
    of = text.plural(counts[0], "run") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs"
    note = f"median of {of}; spread: from the fastest to the slowest; speed-up over {first.layout.name}"
    if any(each.from_log for one in measured for each in one.repetitions):
        note += f"; {first.unit} counted in rank 0's log, over whole runs with their start"
    return Group(*([Text(about, "bold")] if about else []), table, Text(note, "dim"))


def speed(per_s: float) -> str:
    """`3,049`, `0.27`: few a second need their decimals."""
    return text.count(per_s) if per_s >= 100 else f"{per_s:.3g}"


def _table(
    columns: Mapping[str, Callable[[Row], str]], rows: Sequence[Row], least: Sequence[str]
) -> RenderableType:
    """A line a row."""
    left = ("layout", "forecast", "overlap", "remark")
    return FittedTable(
        columns,
        [[cell(row) for cell in columns.values()] for row in rows],
        right=[name for name in columns if name not in left],
        least=least,
        gap=1,
    )


def _share(fraction: float | None) -> str:
    return text.UNKNOWN if fraction is None else f"{fraction:.0%}".replace("%", " %")


class Picture:
    """A bar a layout: its time an epoch, split into what it goes into. The longest takes the room there is."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.measured = measured

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        longest = max(one.epoch_s for one in self.measured)
        label = max(len(one.layout.name) for one in self.measured)
        times = max(len(text.duration(one.epoch_s)) for one in self.measured)
        width = max(min(PICTURE_WIDTH, options.max_width - label - times - 3), 1)
        for one in self.measured:
            line = Text(f"{one.layout.name:>{label}}  ")
            for character, style, count in bar_of(one, round(width * one.epoch_s / longest)):
                line.append(character * count, style)
            yield line.append(f" {text.duration(one.epoch_s)}")
        legend = Text(" " * (label + 2))
        for name, character, style in PARTS:
            legend.append(f"{character} ", style)
            legend.append(f"{name}   ", "dim")
        legend.rstrip()
        yield legend


def bar_of(one: Measured, width: int) -> list[tuple[str, str, int]]:
    """(character, style, how many) of each part of a bar; one plain part where the shares are not known."""
    fractions = [getattr(one.share, name) for name, _, _ in PARTS]
    if None in fractions:
        return [("━", "", max(width, 1))]
    drawn, so_far, parts = 0, 0.0, []
    for (_, character, style), fraction in zip(PARTS, fractions, strict=True):
        so_far += max(fraction, 0.0)
        upto = min(round(so_far * max(width, 1)), max(width, 1))
        parts.append((character, style, upto - drawn))
        drawn = upto
    return parts


def forecast_table(outlooks: Sequence[Outlook]) -> RenderableType:
    """Two lines a layout: with full overlap of averaging and backward pass, and with none."""
    columns: dict[str, Callable[[_End], str]] = {
        "forecast": lambda end: end.of.layout.name if end.full else "",
        "overlap": lambda end: "full" if end.full else "none",
        "step": lambda end: text.milliseconds(end.value(end.of.step_ms)),
        "epoch": lambda end: text.duration(end.value(end.of.epoch_s)),
        "samples/s": lambda end: text.count(end.value(end.of.samples_per_s)),
        "speed-up": lambda end: _times(end.value(end.of.speed_up)),
        "efficiency": lambda end: text.percent(end.value(end.of.efficiency)),
        "$/epoch": lambda end: usd(end.value(end.of.epoch_usd)),
        "measured": lambda end: text.duration(
            end.of.measured.epoch_s if end.of.measured and end.full else None
        ),
    }
    ends = [_End(of=one, full=full) for one in outlooks if one.forecast for full in (True, False)]
    least = ("step", "samples/s", "measured", "efficiency", "$/epoch")
    return _table(columns, ends, least) if ends else Text("no forecast")


@dataclass(frozen=True, kw_only=True)
class _End:
    """One end of a forecast's ranges."""

    of: Outlook
    full: bool

    def value(self, found: Range | None) -> float | None:
        """The range's value at this end."""
        return None if found is None else found.fast if self.full else found.slow


def _times(factor: float | None) -> str:
    return text.UNKNOWN if factor is None else f"{factor:.2f} x"


def forecast_notes(outlooks: Sequence[Outlook]) -> list[str]:
    """What the ranges are, what they rest on, and why a layout has none."""
    bases = [
        f"{one.layout.name} from the steps of {one.base.layout.name}" for one in outlooks if one.forecast
    ]
    notes = []
    if bases:
        notes.append(
            "overlap: of the gradients' averaging with the backward pass; each rank keeps its batch; "
            + ", ".join(bases)
        )
    notes += [_of_link(one.forecast) for one in outlooks if one.forecast and one.forecast.bandwidth]
    notes += [f"{one.layout.name}: {one.why}" for one in outlooks if one.why]
    return list(dict.fromkeys(notes))


def _of_link(found: Forecast) -> str:
    link = found.bandwidth
    assert link is not None
    waiting = f"{link.hop_s * 1e6:,.0f} µs a hop for each of {text.plural(found.buckets, 'bucket')}"
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
    return money.dollars(value)
