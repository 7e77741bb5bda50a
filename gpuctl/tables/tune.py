"""The table of a search's trials, for people. Imports rich: import this module where you print."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl.tables.layout import FittedTable
from gpuctl.text import clean, duration, metric, shorten
from inventories.runs.result import Result
from inventories.runs.search import Search
from inventories.text import plural

ERROR_WIDTH = 60


def tune_table(result: Result, search: Search, words: Sequence[str] | None) -> RenderableType:
    """Show a row a trial, the best first, and how to run the best again. `words`: see `best_words`."""
    run, status, first_error = result.run, result.status, result.first_error
    if not search.trials:
        return Text(f"run {run} {status}: no trial had begun", "yellow")
    failed = [Text(f"\n{clean(first_error.message)}", "red")] if first_error else []
    return Group(
        search_table(search, words),
        *failed,
        Text(f"run {run} {status}; gpuctl logs {run} has what the trials said", "dim"),
    )


def search_table(
    search: Search, words: Sequence[str] | None, *, max_rows: int | None = None
) -> RenderableType:
    """A row a trial, of `most` at most, and how to run the best again. `words`: see `best_words`."""
    names = list(dict.fromkeys(name for trial in search.trials for name in trial.params))
    numbers = ["trial", *names, search.metric, "reports", "time"]
    rows = []
    for trial in search.trials[:max_rows]:
        error = f": {shorten(clean(trial.error), ERROR_WIDTH)}" if trial.error else ""
        cells = (
            str(trial.trial),
            *(_shown(trial.params.get(name)) for name in names),
            "-" if trial.value is None else metric(trial.value),
            str(trial.reports),
            duration(trial.seconds),
            f"{clean(trial.status)}{error}",
        )
        rows.append([Text(cell, "bold" if trial is search.best else "") for cell in cells])
    table = FittedTable(
        [*numbers, "status"], rows, right=numbers, folded=(*names, "status"), optional=("reports", "time")
    )
    more = len(search.trials) - len(rows)
    rest = [Text(f"and {plural(more, 'more trial')}: --json has them all", "dim")] if more else []
    best = [Text(f"\nbest: {best_words(words, search.best.params)}")] if search.best else []
    return Group(table, *rest, *best)


def best_words(words: Sequence[str] | None, params: Mapping[str, Any]) -> str:
    """The best trial's params; with the options that all trials of the built-in job had the command that trains so.

    `words`: these options. `None`: it was a function.
    """
    if words is None:
        return ", ".join(f"{clean(name)}={clean(str(value))}" for name, value in params.items())
    options = (word for name, value in params.items() for word in (f"--{name.replace('_', '-')}", str(value)))
    return clean(f"gpuctl train -- {shlex.join([*words, *options])}", 10_000)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else clean(str(value))
