"""The table of a search's trials, for people. Imports rich: import this module where you print."""

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl.tables.layout import FittedTable
from gpuctl.text import clean, duration, shorten
from gpuctl.workflow.benchmarks.tune import Tuned

ERROR_WIDTH = 60


def tune_table(tuned: Tuned) -> RenderableType:
    """A row a trial, the best first, and how to run the best again."""
    if not tuned.trials:
        return Text(f"run {tuned.result.run} {tuned.result.status}: no trial had begun", "yellow")
    names = list(tuned.trials[0]["params"])
    numbers = ["trial", *names, tuned.metric, "reports", "time"]
    rows = []
    for trial in tuned.trials:
        error = f": {shorten(trial['error'], ERROR_WIDTH)}" if trial.get("error") else ""
        cells = (
            str(trial["trial"]),
            *(_shown(trial["params"].get(name)) for name in names),
            _shown(trial["value"]),
            str(trial["reports"]),
            duration(trial["seconds"]),
            f"{trial['status']}{error}",
        )
        rows.append([Text(cell, "bold" if trial is tuned.best else "") for cell in cells])
    table = FittedTable(
        [*numbers, "status"], rows, right=numbers, folded=(*names, "status"), least=("reports", "time")
    )
    run, first_error = tuned.result.run, tuned.result.first_error
    failed = [Text(f"\n{clean(first_error.message)}", "red")] if first_error else []
    best = [Text(f"\nbest: {best_words(tuned, tuned.best['params'])}")] if tuned.best else []
    return Group(
        table,
        *best,
        *failed,
        Text(f"run {run} {tuned.result.status}; gpuctl logs {run} has what the trials said", "dim"),
    )


def best_words(tuned: Tuned, params: Mapping[str, Any]) -> str:
    """The best trial's params: for the built-in job as the command that trains with them."""
    if tuned.words is None:
        return ", ".join(f"{name}={value}" for name, value in params.items())
    found = (word for name, value in params.items() for word in (f"--{name.replace('_', '-')}", str(value)))
    return f"gpuctl train -- {shlex.join([*tuned.words, *found])}"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
