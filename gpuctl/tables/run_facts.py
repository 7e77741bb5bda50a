"""A run's training, quality and speed, as texts of table cells, and as two columns.

Imports rich: import this module where you print.
"""

import itertools
import statistics
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table

from gpuctl import text
from gpuctl.run_results.saved_results import nothing_was_left
from gpuctl.tables.layout import GAP
from inventories.runs.result import LossSource, Result, TrainSummary
from remote.shared.bars import sparkline

LABEL_WIDTH = 10
VALUE_WIDTH = 22
"""Width of a value if there is room, so that the columns of most runs line up."""
USUAL_PRECISION = "fp32"
METRIC_NAME_WIDTH = 20
"""Of a metric's name, characters in a table."""

LOSS_FOUND: dict[LossSource, str] = {
    "log": " (from lines of its log)",
    "TensorBoard": " (from its TensorBoard files)",
    "Lightning": " (from Lightning's metrics.csv)",
    "Trainer": " (from the Trainer's state)",
}


def facts_table(result: Result) -> RenderableType | None:
    """Show training, quality and speed in two columns, without unknown values. `None`: all are unknown."""
    train, step = result.train, result.train.step_ms
    strategy = ", ".join(part for part in (train.strategy, train.device) if part)
    first_s, precision = train.first_step_s, train.precision if train.precision != USUAL_PRECISION else None
    transports = ", ".join(sorted({transport for rank in result.ranks for transport in rank.transports}))
    savers = (text.clean(name, METRIC_NAME_WIDTH + 10).replace("_", " ") for name in train.memory_savers)
    left = [
        ("model", text.clean(train.model or text.UNKNOWN, 30)),
        ("dataset", text.clean(train.dataset or text.UNKNOWN, 30)),
        ("strategy", text.clean(strategy or text.UNKNOWN, 30)),
        ("first step", text.UNKNOWN if first_s is None else f"after {text.duration(first_s)}"),
        ("epochs", epochs_text(result)),
        ("network", text.clean(transports or text.UNKNOWN, 40)),
        ("precision", text.clean(precision or text.UNKNOWN, 30)),
        ("steps", "CUDA graphs" if train.graphs else text.UNKNOWN),
        ("memory", memory_text(train)),
        ("saved by", ", ".join(savers) or text.UNKNOWN),
    ]
    right = [
        ("accuracy", accuracy_text(result)),
        *(
            (text.shorten(name, METRIC_NAME_WIDTH), metric_text(result, name))
            for name in metric_names(result)
        ),
        ("loss", _loss(train)),
        (
            "samples/s",
            text.count(train.samples_per_s) + (" (of the whole run)" if train.samples_per_s_by else ""),
        ),
        ("tokens/s", text.count(train.tokens_per_s)),
        ("MFU", text.percent(train.mfu)),
        ("step p50", text.milliseconds(step.p50)),
        ("step p95", text.milliseconds(step.p95)),
    ]
    known = [[(name, value) for name, value in column if value != text.UNKNOWN] for column in (left, right)]
    columns = [column for column in known if column]
    return _Facts(columns) if columns else None


class _Facts:
    """Names and values in columns side by side, or one below the other on a narrow terminal."""

    def __init__(self, columns: Sequence[Sequence[tuple[str, str]]]) -> None:
        self.columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [max(LABEL_WIDTH, *(cell_len(name) for name, _ in column)) for column in self.columns]
        values = [max(cell_len(value) for _, value in column) for column in self.columns]
        wide, close = [max(VALUE_WIDTH, width) for width in values], values
        for widths in (wide, close):
            if sum(names) + sum(widths) + GAP * (2 * len(names) - 1) <= options.max_width:
                yield _grid(self.columns, names, widths)
                return
        yield _grid([list(itertools.chain.from_iterable(self.columns))], [max(names)], [0])


def _grid(columns: Sequence[Sequence[tuple[str, str]]], names: Sequence[int], values: Sequence[int]) -> Table:
    """The columns side by side: the width of the names, and at least that of the values."""
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for name, value in zip(names, values, strict=True):
        grid.add_column(style="dim", width=name)
        grid.add_column(min_width=value, overflow="fold")
    for row in itertools.zip_longest(*columns, fillvalue=("", "")):
        grid.add_row(*itertools.chain.from_iterable(row))
    return grid


def accuracy_text(result: Result) -> str:
    """Return `97.2 % (test)`: the accuracy and its samples, as far as reported."""
    shown = text.percent(result.train.accuracy)
    return f"{shown} ({result.train.judged_on})" if _has_accuracy(result) else shown


def metric_names(result: Result) -> list[str]:
    """Return the names of the other metrics."""
    return [name for name in result.train.metrics if name != "accuracy" or not _has_accuracy(result)]


def _has_accuracy(result: Result) -> bool:
    """Return whether the accuracy is one of the metrics."""
    accuracy = result.train.accuracy
    return accuracy is not None and result.train.metrics.get("accuracy") == accuracy


def metric_text(result: Result, name: str) -> str:
    """`0.8731 (test)`."""
    value = result.train.metrics.get(name)
    if value is None:
        return text.UNKNOWN
    shown = text.metric(value)
    return f"{shown} ({result.train.judged_on})" if result.train.judged_on else shown


def memory_text(train: TrainSummary) -> str:
    """`21.4 GB a rank`: the most of any."""
    if train.memory_gb is None:
        return text.UNKNOWN
    large = train.memory_gb >= 1
    return f"{train.memory_gb:,.1f} GB a rank" if large else f"{train.memory_gb * 1000:.3g} MB a rank"


def epochs_text(result: Result) -> str:
    """Return `3 x 1.2 s`: number and median time of epochs; `9 of 60, 1.2 s each` if epochs are missing.

    For a resumed run: `10 to 60 of 60, 1.2 s each`.
    """
    times, planned, before = result.train.epoch_s, result.train.epochs, result.train.epochs_before
    whole = result.status == "succeeded" and result.resumed_from is None
    if nothing_was_left(result):
        return f"0 of {planned}" if not before else f"0 of {planned} after {before}"
    if not times:
        return text.UNKNOWN if not planned else str(planned) if whole else f"{planned} planned"
    each = text.duration(statistics.median(times))
    if planned and before:
        last = before + len(times)
        if len(times) == 1:
            return f"epoch {last} of {planned}, {each}"
        return f"{before + 1} to {last} of {planned}, {each} each"
    if planned and len(times) < planned and not whole:
        return f"{len(times)} of {planned}, {each} each"
    return f"{planned or len(times)} x {each}"


def commit_text(result: Result) -> str:
    """`1a2b3c4d5e, files changed`: the commit of the project that was sent."""
    commit = result.commit
    return text.UNKNOWN if commit is None else text.commit(commit.sha, dirty=commit.dirty)


def tags_text(result: Result) -> str:
    """Return the tags of a run as `sweep=lr, data=v2`."""
    return ", ".join(f"{name}={value}" for name, value in result.tags.items()) or text.UNKNOWN


def last_loss(train: TrainSummary) -> str:
    """`0.120`, or `0.120 (val_loss)` of a loss with another name."""
    return text.loss(train.loss[-1]) + _loss_name(train) if train.loss else text.UNKNOWN


def _loss_name(train: TrainSummary) -> str:
    return f" ({text.shorten(text.clean(train.loss_name), METRIC_NAME_WIDTH)})" if train.loss_name else ""


def _loss(train: TrainSummary) -> str:
    """`0.912 0.301 0.120`, or the first and the last with their course between; and where they were found."""
    losses = train.loss
    if not losses:
        return text.UNKNOWN
    shown = [text.loss(loss) for loss in losses]
    middle = [losses[round(at * (len(losses) - 1) / 15)] for at in range(16)] if len(losses) > 16 else losses
    course = " ".join(shown) if len(shown) <= 4 else f"{shown[0]} {sparkline(middle)} {shown[-1]}"
    return course + (LOSS_FOUND[train.loss_from] if train.loss_from else _loss_name(train))
