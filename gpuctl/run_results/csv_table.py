"""Results as a CSV table, with a row for each epoch or step of a run."""

import csv
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuctl.errors import Usage
from gpuctl.output_files import check_file, write_file
from gpuctl.run_results.curves import points_of
from gpuctl.run_results.saved_results import args_of, options_of
from inventories.codec import to_json
from inventories.runs.result import Result
from inventories.text import plural
from remote.shared.secret_arguments import without_secrets

FIELDS: Mapping[str, tuple[str, ...]] = {
    "first_error": ("rank", "node", "message", "reason", "detail"),
    "usage": ("gpu_utilization", "cpu_utilization"),
    "commit": ("sha", "dirty"),
    "unused_metrics": ("lines", "rank", "example", "why"),
    "parts": ("start", "first_steps", "steps", "evaluation", "checkpoints", "end"),
    "first_step": ("imports", "device", "data", "model", "step"),
}
"""Columns of a part of a result, also if it is null."""


def write_csv(results: Sequence[Result], path: Path) -> str:
    """Write a row for each epoch or step of a run, each with the values of its run (`train.step_ms.p50`, …).

    A run without such has one row; a search has one for each trial below. Unknown values are empty. Replaces the
    file, and returns a sentence on it. Raises Usage for `-`, Failed if the file can't be written.
    """
    check_table(path)
    write_file(path, csv_text(results).encode(errors="backslashreplace"))
    return f"wrote {path}: {plural(len(results), 'run')}, a row for each epoch or step"


def check_table(path: Path) -> None:
    """Raise Usage for a file that can't be written: before any work."""
    if str(path) == "-":
        raise Usage("The table is written to a file, not to stdout. Name the file, as in --csv runs.csv.")
    check_file(path)


def csv_text(results: Sequence[Result]) -> str:
    """Return the table as text, with a head: the run, the place, the values there, the values of the run.

    The script's arguments come last: a column each, and one with all.
    """
    rows = [row for result in results for row in _rows(result)]
    names = dict.fromkeys(column for row in rows for column in row)
    first = {"run": 0, "name": 1, "epoch": 2, "step": 3, "loss": 4}
    columns = sorted(
        names,
        key=lambda name: (
            first.get(name, 5),
            not name.startswith("metrics."),
            name == "args",
            name.startswith("args."),
        ),
    )
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    # The arguments were typed by whoever reads the table.
    writer.writerows(
        {name: value if name == "args" else _inert(value) for name, value in row.items()} for row in rows
    )
    return out.getvalue()


def _inert(value: Any) -> Any:  # noqa: ANN401 - any value of a cell
    """Return a cell that no program of tables reads as a formula: a text like one begins with an apostrophe."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield a row for each point of a run, or a row alone, and one for each of its trials."""
    # Each node's files and end are in the JSON alone: a column a node would make no table.
    document = to_json(replace(result, checkpoints={}, endings={}, search=None))
    args = without_secrets(args_of(result))
    trials = result.search
    search = {
        "search.metric": trials.metric if trials else None,
        "search.mode": trials.mode if trials else None,
        "search.best": trials.best.trial if trials and trials.best else None,
        "search.value": trials.best.value if trials and trials.best else None,
    }
    last = _cell(result.train.loss[-1]) if result.train.loss else None
    options = {f"args.{name}": value or "yes" for name, value in options_of(args).items()}
    run = _flat(document) | {"train.last_loss": last} | search | options | {"args": shlex.join(args)}
    for point in [*points_of(result)] or [{}]:
        yield run | {name: _cell(value) for name, value in point.items()}
    for trial in trials.trials if trials else ():
        document = {"run": result.run} | _flat(to_json(trial), "trial.")
        yield document | {"trial.trial": trial.trial}


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested document with dotted keys. Lists are left out, but for the savers of memory."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key in FIELDS:
            value = value or dict.fromkeys(FIELDS[key])
        if key in ("hang", "logged_error"):
            value = value and value["sentence" if key == "hang" else "message"]
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        elif not isinstance(value, list):
            flat[prefix + key] = value
        elif key == "memory_savers":
            flat[prefix + key] = " ".join(value)
    return flat


def _cell(number: float | None) -> str:
    if number is None:
        return "nan"
    return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e15 else f"{number:.6g}"
