"""The table of `advise`: what fits, the cheapest first, and why the rest does not. Imports rich."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl import text
from gpuctl.command_results.runs import AdviceRow
from gpuctl.tables.layout import FittedTable
from inventories.text import dollars, plural

MOST_ROWS = 20
"""That fit, and are shown: more of them are one strategy each for a shape and count."""
MOST_REASONS = 12


def advice_table(rows: Sequence[AdviceRow], *, everything: bool, rented: bool) -> RenderableType:
    """Return the command of the first row, the rows that fit, and why others don't.

    `rented`: machines are rented for the training. False: a cluster has them.
    """
    fitting = [row for row in rows if row.fits]
    shown = fitting if everything else _some(fitting)
    reasons = _without_fit(rows, everything=everything)
    parts: list[RenderableType] = []
    if fitting:
        # In one line however narrow the terminal is: it is to be copied.
        command = fitting[0].command
        if command is None:
            parts.append(Text(fitting[0].reason or "", "bold"))
        else:
            parts.append(Text(command, "bold", no_wrap=True, overflow="ignore"))
        parts += ["", _table(shown, rented=rented)]
        notes = dict.fromkeys(
            f"{_name(row)}: {row.reason}" if (row.reason or "").startswith("measured") else row.reason
            for row in shown
        )
        parts += [Text(note, "dim") for note in notes if note and (command or note != fitting[0].reason)]
        if hidden := len(fitting) - len(shown):
            parts.append(Text(f"{plural(hidden, 'more row')} that fit: --all shows them", "dim"))
    else:
        parts.append(Text("It fits on none of these machines.", "bold"))
    if reasons:
        parts += ["", Text("does not fit:" if fitting else "The nearest:", "dim")]
        parts += [Text(f"{_name(row)}: {row.reason}") for row in reasons]
    return Group(*parts)


def _some(fitting: Sequence[AdviceRow]) -> Sequence[AdviceRow]:
    """Return the rows, or where they are many the best of each shape and count."""
    if len(fitting) <= MOST_ROWS:
        return fitting
    best: dict[tuple[str, int], AdviceRow] = {}
    for row in fitting:
        best.setdefault((row.shape, row.count), row)
    return list(best.values())[:MOST_ROWS]


def _without_fit(rows: Sequence[AdviceRow], *, everything: bool) -> Sequence[AdviceRow]:
    """Return the rows that do not fit, or where they are many the nearest of each shape on which nothing fits."""
    lacking = [row for row in rows if not row.fits]
    if everything or len(lacking) <= MOST_REASONS:
        return lacking
    good = {row.shape for row in rows if row.fits}
    nearest: dict[str, AdviceRow] = {}
    for row in lacking:
        if row.shape not in good:
            nearest.setdefault(row.shape, row)
    return list(nearest.values())


def _name(row: AdviceRow) -> str:
    return f"{row.count} x {row.shape}, {row.strategy}, {row.precision}"


def _table(rows: Sequence[AdviceRow], *, rented: bool) -> RenderableType:
    images = all(row.batch_tokens is None for row in rows)
    speed, samples = ("images/s", "images") if images else ("tokens/s", "sequences")
    columns: dict[str, Callable[[AdviceRow], str]] = {
        "machines": lambda row: f"{row.count} x {row.shape}",
        "strategy": lambda row: row.strategy,
        "precision": lambda row: row.precision,
        "memory": lambda row: text.known(row.memory_gb, f"{{:.1f}} of {row.gpu_memory_gb:.0f} GB"),
        "at once": lambda row: str(row.micro_batch),
        "step": _step,
        speed: lambda row: text.count(row.samples_per_s if images else row.tokens_per_s),
        "MFU": lambda row: text.percent(row.mfu, 0),
        "$/h": lambda row: _usd(row.hourly_usd),
        "$/epoch": lambda row: _usd(row.usd_per_epoch),
        # The middle of the range.
        "time": lambda row: text.duration(sum(row.total_s) / 2 if row.total_s else None),
        "$ in all": lambda row: _usd(row.usd_total),
    }
    table = FittedTable(
        columns,
        [[cell(row) for cell in columns.values()] for row in rows],
        right=[name for name in columns if name not in ("machines", "strategy", "precision")],
        optional=("at once", "$/h", "MFU", "memory", speed, "$/epoch"),
    )
    note = (
        f"memory: of the fullest rank; at once: {samples} of a rank; step: from the best case to the worst; "
        + (
            "time and $ in all: with boot and set-up; list prices, without disks"
            if rented
            else "time and $ in all: of the training alone"
        )
    )
    return Group(table, Text(note, "dim"))


def _step(row: AdviceRow) -> str:
    """Return `17-27 s`, `230-370 ms`."""
    if row.step_s is None:
        return text.UNKNOWN
    low, high = row.step_s
    return f"{low * 1000:.0f}-{high * 1000:.0f} ms" if high < 1 else f"{low:.3g}-{high:.3g} s"


def _usd(usd: float | None) -> str:
    return text.UNKNOWN if usd is None else dollars(usd).removeprefix("$")
