"""Results as files: a CSV table, and a plot."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuctl.errors import Failed, Usage
from inventories.codec import to_json
from inventories.run import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOTS = (".png", ".svg", ".pdf")


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write one line a run, a column a value (`train.step_ms.p50`, …); what is not known is empty.

    Replaces the file. Raises Failed where it can't be written.
    """
    _write(path, csv_text(results).encode())


def csv_text(results: Sequence[Result]) -> str:
    """The table as text, with a head."""
    rows = [_flat(to_json(result)) for result in results]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested document with dotted keys; lists of numbers are separated by blanks, the ranks left out."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key == "first_error":
            value = value or {"rank": None, "node": None, "message": None}
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        elif not isinstance(value, list):
            flat[prefix + key] = value
        elif key != "ranks":
            flat[prefix + key] = " ".join("nan" if item is None else str(item) for item in value)
    return flat


def write_plot(results: Sequence[Result], path: Path) -> None:
    """Draw the runs: speed against ranks, what a step's time goes into, the loss an epoch.

    The file's ending names its kind. Raises Usage for another kind, Failed without matplotlib or where the
    file can't be written.
    """
    kind = path.suffix.lower()
    if kind not in PLOTS:
        raise Usage(f"A plot can be one of {', '.join(PLOTS)}, but '{path}' is none of them.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Failed(
            "A plot needs matplotlib, which is not installed. Install it with: pip install 'gpuctl[plot]'"
        ) from error
    figure = Figure(figsize=(13, 4), layout="constrained")
    speed, share, loss = figure.subplots(1, 3)
    _plot_speed(speed, results)
    _plot_share(share, results)
    _plot_loss(loss, results)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind[1:], dpi=120)
    _write(path, drawn.getvalue())


def _plot_speed(axes: "Axes", results: Sequence[Result]) -> None:
    """Samples a second against ranks, and what they would be if each rank added as much as the first run's."""
    known = [(result.world_size, speed) for result in results if (speed := result.train.samples_per_s)]
    axes.set(title="speed", xlabel="ranks", ylabel="samples/s")
    if not known:
        return
    known.sort()
    axes.plot(*zip(*known, strict=True), "o-", label="measured")
    (fewest, speed), most = known[0], known[-1][0]
    axes.plot([fewest, most], [speed, speed * most / fewest], "--", color="gray", label="ideal")
    axes.set_xticks(sorted({ranks for ranks, _ in known}))
    axes.set_ylim(bottom=0)
    axes.legend()


def _plot_share(axes: "Axes", results: Sequence[Result]) -> None:
    """A bar a run: the parts of a step's time, of those runs that know them."""
    axes.set(title="a step's time", ylabel="share", ylim=(0, 1.2), xlim=(-0.8, max(len(results), 2) - 0.2))
    below = [0.0] * len(results)
    for name, color in (("compute", "#3a7d44"), ("communication", "#e0a458"), ("data", "#4a7fb0")):
        parts = [getattr(result.train.share, name) or 0.0 for result in results]
        axes.bar(range(len(results)), parts, bottom=below, label=name, color=color)
        below = [low + part for low, part in zip(below, parts, strict=True)]
    labels = [_label(result) for result in results]
    if len(results) > 3:
        axes.set_xticks(range(len(results)), labels, rotation=30, ha="right")
    else:
        axes.set_xticks(range(len(results)), labels)
    axes.legend(loc="upper center", ncols=3)


def _plot_loss(axes: "Axes", results: Sequence[Result]) -> None:
    """A line a run that has losses."""
    from matplotlib.ticker import MaxNLocator

    axes.set(title="training loss", xlabel="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    known = [result for result in results if result.train.loss]
    for result in known:
        losses = result.train.loss
        axes.plot(range(1, len(losses) + 1), losses, "o-", markersize=3, label=_label(result))
    if known:
        axes.set_ylim(bottom=0)
        axes.legend()


def _label(result: Result) -> str:
    """`2 ranks, 3fa9`: enough to tell the runs apart."""
    return f"{result.world_size} ranks, {result.run.rsplit('-', 1)[-1]}"


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Failed(f"'{path}' can't be written: {error.strerror}. Name another file.") from error
