"""Several runs in one table, a row each: in which settings they differ, how they ended, and which is the best.

Imports rich: import this module where you print.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl import text
from gpuctl.run_results.best import Best, best_of, best_sentence
from gpuctl.run_results.failures.failures import headline
from gpuctl.run_results.repeats import Repeats, repeats_of
from gpuctl.run_results.saved_results import (
    Setting,
    descriptions_of,
    differences,
    is_other_layout,
    setting_text,
    settings_of,
)
from gpuctl.tables.layout import FittedTable
from gpuctl.tables.run import STATUS_STYLES
from gpuctl.tables.run_facts import (
    METRIC_NAME_WIDTH,
    accuracy_text,
    epochs_text,
    last_loss,
    memory_text,
    metric_names,
    metric_text,
)
from inventories.runs.labels import MAX_NAME
from inventories.runs.result import Result
from inventories.text import plural

Column: TypeAlias = Callable[[Result, Result], str]
"""Makes a run's cell, of its result and that of the first run."""
BEST = "*"
"""Mark of the best run."""
MAX_SETTINGS = 5
"""With more settings that differ, one column has all of them."""
CELL_WIDTH = 40
FOLDED_WIDTH = 24
"""Minimum width of a column of settings."""
FAILURES_SHOWN, FAILURE_WIDTH = 6, 160
COMMON_WIDTH = 400
"""Characters of the settings that all runs have."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Several runs as a table of texts."""

    columns: Mapping[str, Sequence[str]]
    """Title → a cell a run; `-` for unknown values. No column is wholly unknown."""
    common: str
    """The settings that all runs have."""
    repeats: Mapping[str, Sequence[str]]
    """Title → a cell a setting: mean and spread over the runs of each. Empty: no setting has several."""
    failures: Sequence[str]
    best: Best | None


def compared(results: Sequence[Result]) -> Compared:
    """Return the table of several runs: a column for each setting that differs, and how each run ended."""
    settings, best = settings_of(results), best_of(results)
    columns: dict[str, Sequence[str]] = {
        "run": [result.run for result in results],
        "name": [text.clean(result.name or text.UNKNOWN, MAX_NAME) for result in results],
        **_setting_columns(results, settings),
    }
    facts = []
    for name, cell in FACTS.items():
        cells = [cell(result) for result in results]
        known = [*dict.fromkeys(cell for cell in cells if cell != text.UNKNOWN)]
        if len(known) > 1:
            if columns.get(name, cells) != cells:  # an option of the same name, which says another thing
                columns = {f"--{name}" if title == name else title: each for title, each in columns.items()}
            columns[name] = cells
        facts += known if len(known) == 1 else []
    columns["status"] = [result.status for result in results]
    for name, figure in _figures(results):
        title = f"last {name}" if name in columns else name
        columns[title] = [figure(result, results[0]) for result in results]
    common = [
        f"{text.clean(name)} {value}".rstrip() if kind == "option" else value
        for (kind, name), (value, *more) in settings.items()
        if value is not None and set(more) <= {value}
    ]
    failed = [
        (run, result.first_error)
        for run, result in zip(descriptions_of(results), results, strict=True)
        if result.first_error
    ]
    failures = [
        f"{name}: {text.shorten(text.clean(''.join(headline(error))), FAILURE_WIDTH)}"
        for name, error in failed[:FAILURES_SHOWN]
    ]
    if len(failed) > FAILURES_SHOWN:
        failures.append(f"{plural(len(failed) - FAILURES_SHOWN, 'more run')} failed")
    return Compared(
        columns={title: cells for title, cells in columns.items() if set(cells) != {text.UNKNOWN}},
        common=text.shorten(text.clean(" · ".join([*common, *facts])), COMMON_WIDTH),
        repeats=_repeats(results, best),
        failures=failures,
        best=best,
    )


def best_first(results: Sequence[Result]) -> Sequence[Result]:
    """Return the runs as they are ranked, then the runs without the measure. Layouts of one job keep their order."""
    best = best_of(results)
    if best is None or any(is_other_layout(result, results[0]) for result in results):
        return results
    ranked = {result.run for result in best.ranked}
    return [*best.ranked, *(result for result in results if result.run not in ranked)]


def comparison(results: Sequence[Result]) -> RenderableType:
    """Show several runs: their common settings, a row each, their failures, and a sentence on the best."""
    results = best_first(results)
    table = compared(results)
    best = [table.best is not None and result is table.best.result for result in results]
    columns: dict[str, Sequence[Text]] = {"": [Text(BEST if is_best else "", "bold") for is_best in best]}
    for title, cells in table.columns.items():
        styles = [STATUS_STYLES.get(cell, "") if title == "status" else "" for cell in cells]
        if title in ("run", "name"):
            styles = ["bold" if is_best else "" for is_best in best]
        columns[title] = [Text(cell, style) for cell, style in zip(cells, styles, strict=True)]
    # A name leads to the newest run that has it, and an id to the run itself.
    names = set(table.columns.get("name", ())) - {text.UNKNOWN}
    lines: list[RenderableType] = [
        counted_by_status(results),
        Text(f"all runs: {table.common}", "dim"),
        "",
        FittedTable(
            columns,
            list(zip(*columns.values(), strict=True)),
            right=RIGHT,
            folded=("differs by", "commit", *(title for title in columns if title.startswith("--"))),
            folded_width=FOLDED_WIDTH,
            optional=(*OPTIONAL, *["run"] * (len(names) == len(results))),
        ),
        *(Text(failure, "red") for failure in table.failures),
    ]
    if table.repeats:
        rows = zip(*table.repeats.values(), strict=True)
        lines += ["", FittedTable(table.repeats, rows, right=("runs",), folded=("setting",))]
    if table.best is not None and len(results) > 1:
        lines += ["", Text(f"{BEST} {best_sentence(table.best, results)}", "bold")]
    if "speed-up" in table.columns:
        lines.append(Text(f"speed-up over run {results[0].run}; efficiency: the same per rank", "dim"))
    return Group(*lines)


def counted_by_status(results: Sequence[Result]) -> str:
    """Return `20 runs: 16 succeeded, 4 failed`."""
    counts = Counter(result.status for result in results)
    return f"{plural(len(results), 'run')}: " + ", ".join(
        f"{count} {status}" for status, count in counts.most_common()
    )


def _setting_columns(
    results: Sequence[Result], settings: Mapping[Setting, Sequence[str | None]]
) -> dict[str, Sequence[str]]:
    """Return a column for each setting that differs, or one for all of very many."""
    differing = {setting: values for setting, values in settings.items() if len(set(values)) > 1}
    if len(differing) > MAX_SETTINGS:
        return {"differs by": differences(results, terse=True)}
    titles = _titles([name for _, name in differing])
    reserved = {"run", "name", "status", *dict(FIGURES), *(name for kind, name in settings if kind == "run")}
    columns: dict[str, Sequence[str]] = {}
    for (kind, name), values in differing.items():
        title = f"--{titles[name]}" if kind == "option" and titles[name] in reserved else titles[name]
        columns[title] = [text.shorten(setting_text((kind, name), value), CELL_WIDTH) for value in values]
    return columns


def _titles(names: Iterable[str]) -> dict[str, str]:
    """Return a short title for each name; names that would have the same keep their whole length."""
    short = {name: text.shorten(text.clean(name), METRIC_NAME_WIDTH) for name in names}
    times = Counter(short.values())
    return {name: text.clean(name) if times[title] > 1 else title for name, title in short.items()}


def _figures(results: Sequence[Result]) -> Iterator[tuple[str, Column]]:
    """Yield the columns of how runs ended, and after the accuracy one for each metric that a run has."""
    for name, cell in FIGURES:
        yield name, cell
        if name == "accuracy":
            for metric, title in _titles(name for result in results for name in metric_names(result)).items():
                yield title, partial(_metric, metric)


def speed_up(result: Result, base: Result) -> float | None:
    """Return the ratio of a run's speed to that of `base`, or `None` if they are not two layouts of one job."""
    speed, base_speed = result.train.samples_per_s, base.train.samples_per_s
    return speed / base_speed if speed and base_speed and is_other_layout(result, base) else None


def _efficiency(result: Result, base: Result) -> str:
    factor = speed_up(result, base)
    return text.percent(None if factor is None else factor * base.world_size / result.world_size)


def _metric(name: str, result: Result, _: Result) -> str:
    return metric_text(result, name)


def _best_trial(result: Result, _: Result) -> str:
    """Return `accuracy 0.97`: the best trial of a search."""
    best = result.search.best if result.search else None
    if result.search is None or best is None:
        return text.UNKNOWN
    value = text.UNKNOWN if best.value is None else text.metric(best.value)
    return f"{text.clean(result.search.metric, 20)} {value}"


def _repeats(results: Sequence[Result], best: Best | None) -> dict[str, list[str]]:
    """Return the columns of the settings that several runs have."""
    repeats = repeats_of(results, best.measure) if best is not None else []
    if best is None or not repeats:
        return {}
    shown = best.measure.shown
    values: dict[str, Callable[[Repeats], float | None]] = {
        f"mean {best.measure.name}": lambda each: each.mean,
        "std. dev.": lambda each: each.spread,
        "best": lambda each: each.values[0],
        "worst": lambda each: each.values[-1],
    }
    return {
        "setting": [each.settings or "all runs" for each in repeats],
        "runs": [
            f"{len(each.values)} of {each.count}" if len(each.values) < each.count else str(each.count)
            for each in repeats
        ],
        **{
            title: [
                text.UNKNOWN if not each.values or (number := value(each)) is None else shown(number)
                for each in repeats
            ]
            for title, value in values.items()
        },
    }


FACTS: Mapping[str, Callable[[Result], str]] = {
    "cluster": lambda result: f"cluster {result.cluster}",
    "model": lambda result: text.clean(result.train.model or text.UNKNOWN, CELL_WIDTH),
    "dataset": lambda result: text.clean(result.train.dataset or text.UNKNOWN, CELL_WIDTH),
    "device": lambda result: text.clean(result.train.device or text.UNKNOWN, CELL_WIDTH),
}
"""Columns of runs that have different ones."""
FIGURES: tuple[tuple[str, Column], ...] = (
    ("accuracy", lambda result, _: accuracy_text(result)),
    ("best trial", _best_trial),
    ("loss", lambda result, _: last_loss(result.train)),
    ("epochs", lambda result, _: epochs_text(result)),
    ("samples/s", lambda result, _: text.count(result.train.samples_per_s)),
    ("tokens/s", lambda result, _: text.count(result.train.tokens_per_s)),
    ("MFU", lambda result, _: text.percent(result.train.mfu)),
    ("memory", lambda result, _: memory_text(result.train)),
    ("speed-up", lambda result, base: text.known(speed_up(result, base), "{:.2f} x")),
    ("efficiency", _efficiency),
    ("step p50", lambda result, _: text.milliseconds(result.train.step_ms.p50)),
    ("step p95", lambda result, _: text.milliseconds(result.train.step_ms.p95)),
    ("compute", lambda result, _: text.percent(result.train.share.compute)),
    ("communication", lambda result, _: text.percent(result.train.share.communication)),
    ("data", lambda result, _: text.percent(result.train.share.data)),
    ("train", lambda result, _: text.duration(result.seconds.train)),
    ("total", lambda result, _: text.duration(result.seconds.total)),
    ("cost", lambda result, _: text.dollars(result.cost_usd) if result.cost_usd else text.UNKNOWN),
)
RIGHT = ("samples/s", "tokens/s", "MFU", "memory", "speed-up", "efficiency", "step p50", "step p95")
OPTIONAL = (
    "total", "compute", "communication", "data", "step p95", "memory", "epochs", "device", "step p50", "MFU",
    "tokens/s", "train", "cluster", "cost", "samples/s", "efficiency",
)  # fmt: skip
"""Columns that a narrow terminal lacks, in the order of leaving them out."""
