"""The report's page, made of results and of the files in the runs' folders. Nothing is asked or sent."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuctl import text
from gpuctl.errors import Usage
from gpuctl.option_table.queue_options import SWEEP_ID, SWEEP_TAG
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.output_files import check_file, write_file
from gpuctl.run_report import charts
from gpuctl.run_results.advice import advice_on, notes_on
from gpuctl.run_results.best import best_sentence
from gpuctl.run_results.failures.failures import headline
from gpuctl.run_results.saved_results import descriptions_of, labels_of, launch_of, names_of
from gpuctl.run_results.time_parts import time_lines
from gpuctl.run_results.utilisation import use_lines
from gpuctl.tables.comparison import FACTS, FIGURES, best_first, compared, counted_by_status
from gpuctl.tables.run import LOG_LINES, PHASES, RANKS_SHOWN, end_of
from gpuctl.tables.run_facts import commit_text, metric_names, metric_text, tags_text
from inventories.option import Option, options_of
from inventories.runs.result import Result
from inventories.runs.run import Run, RunOptions
from inventories.specs.spec import DEFAULT_CLUSTER
from inventories.text import plural
from remote.launchers import DEFAULT
from remote.shared.addresses import without_logins
from remote.shared.secret_arguments import without_secrets

TEMPLATE = "page.html"
LINE_LENGTH = 10_000
"""Characters of a line of text; points and commands are whole."""
LEFT_OUT = ("root", "hang_after", "on_hang")
"""Options of the record that say more than was typed, or depend on another."""
_UNPRINTABLE = re.compile("[\ufdd0-\ufdef\ufffe\uffff]|[\U0001fffe-\U0010ffff](?<=[\ufffe\uffff])")
"""Code points that no text of a page may have."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A run, in texts."""

    result: Result
    label: str
    facts: Sequence[tuple[str, str]]
    phases: Sequence[tuple[str, str]]
    error: str
    advice: str
    notes: Sequence[str]
    log: str
    """The end of the log of the rank that failed first."""
    ranks: Mapping[str, Sequence[str]]
    """Title → a cell a rank. No column is wholly unknown."""
    more_ranks: int
    command: str
    """Starts the run again. Empty: not known."""


def write_report(results: Sequence[Result], path: Path) -> str:
    """Write the report of runs in place of an earlier file, and return a sentence on it. Raises Usage, and Failed."""
    check_report(path)
    page = report_page(results, datetime.now(UTC))
    write_file(path, page.encode(errors="backslashreplace"))
    return f"wrote {path}: a report of {plural(len(results), 'run')}; open it in a browser"


def check_report(path: Path) -> None:
    """Raise Usage for a file that is no page or can't be written: before any work."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise Usage(f"A report is a page, but '{path}' is not. Name it, as in -o report.html.")
    check_file(path)


def report_page(results: Sequence[Result], now: datetime) -> str:
    """Return the page. Each text in it is escaped, and it loads nothing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import escape

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["zip"] = zip
    environment.filters["whole"] = lambda value: escape(_clean(value, sys.maxsize))
    return environment.get_template(TEMPLATE).render(_values(results, now))


def _printable(value: Any) -> Any:  # noqa: ANN401 - any value of the template
    """Return a text without logins in addresses and characters that a page can't have; other values as they are."""
    if type(value) is not str:  # markup is the template's own
        return value
    return _clean(value, LINE_LENGTH)


def _clean(value: str, limit: int) -> str:
    return _UNPRINTABLE.sub("", text.clean_lines(without_logins(value), limit))


def _values(results: Sequence[Result], now: datetime) -> dict[str, Any]:
    results = best_first(results)
    table = compared(results)
    best = table.best.result.run if table.best is not None and len(results) > 1 else None
    labels = labels_of(results)
    scripts = [*dict.fromkeys(result.script for result in results)]
    costs = [result.cost_usd for result in results]
    return {
        "title": f"{names_of(results)[0]} of {scripts[0]}"
        if len(results) == 1
        else f"{plural(len(results), 'run')} of {', '.join(scripts[:3])}{' and others' * (len(scripts) > 3)}",
        "best": best,
        "best_sentence": best_sentence(table.best, results) if best and table.best else "",
        "now": _shown_time(now),
        "counts": counted_by_status(results),
        "cost": text.dollars(sum(cost for cost in costs if cost is not None)) if None not in costs else "",
        "took": text.duration(sum(result.seconds.total or 0.0 for result in results)),
        "table": table,
        "rows": list(zip(*table.columns.values(), strict=True)),
        "repeats": list(zip(*table.repeats.values(), strict=True)),
        "runs": [result.run for result in results],
        "losses": charts.loss_chart(results, labels, best),
        "speeds": charts.speed_chart(results, labels),
        "shares": charts.share_chart(results, labels),
        "size": charts,
        "sections": list(map(_section, results, descriptions_of(results))),
    }


def _shown_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _section(result: Result, label: str) -> Section:
    run, error = launch_of(result), result.first_error
    options = run.options if run is not None and run.options is not None else RunOptions()
    log = ""
    if error is not None:
        name = error.node if error.rank is None else f"rank-{error.rank}"
        log = "\n".join(end_of(Path(result.dir) / "logs" / f"{name}.log").rstrip().split("\n")[-LOG_LINES:])
    facts = [
        ("status", result.status),
        ("note", result.note or text.UNKNOWN),
        ("tags", tags_text(result)),
        ("began", _shown_time(datetime.fromisoformat(result.started_at))),
        ("machines", f"{plural(result.nnodes, 'node')}, {plural(result.world_size, 'rank')}, {result.mode}"),
        ("shape", (run.shape if run else None) or text.UNKNOWN),
        *((name, cell(result)) for name, cell in FACTS.items()),
        ("commit", commit_text(result)),
        ("resumed", f"from {result.resumed_from}" if result.resumed_from else text.UNKNOWN),
        ("Python", options.python or text.UNKNOWN),
        ("packages", " ".join(filter(None, [*options.pip, options.requirements])) or text.UNKNOWN),
        *((name, figure(result, result)) for name, figure in FIGURES if name not in ("train", "total")),
        *((name, metric_text(result, name)) for name in metric_names(result)),
        *((f"time in {name}", shown) for name, shown in time_lines(result.train)),
        *((name or "more", shown) for name, shown in (use_lines(result.usage) if result.usage else ())),
    ]
    ranks = {
        "rank": [str(rank.rank) for rank in result.ranks],
        "node": [rank.node for rank in result.ranks],
        "device": [rank.device or text.UNKNOWN for rank in result.ranks],
        "exit": [text.UNKNOWN if rank.exit_code is None else str(rank.exit_code) for rank in result.ranks],
        "step p50": [text.milliseconds(rank.step_ms_p50) for rank in result.ranks],
    }
    seconds = [(name, getattr(result.seconds, name)) for name in PHASES]
    return Section(
        result=result,
        label=label,
        facts=[(name, shown) for name, shown in facts if shown not in (text.UNKNOWN, "cluster default")],
        phases=[(name, text.duration(value)) for name, value in seconds if value is not None],
        error="".join(headline(error)) if error else "",
        advice=advice_on(result, run) if error else "",
        notes=notes_on(result, run),
        log=log,
        ranks={title: cells[:RANKS_SHOWN] for title, cells in ranks.items() if {*cells} - {text.UNKNOWN}},
        more_ranks=max(0, len(result.ranks) - RANKS_SHOWN),
        command="" if run is None else _command(run, options),
    )


def _command(run: Run, options: RunOptions) -> str:
    """Return the command that starts a run again. A variable is named, and takes its value where it is typed."""
    if SWEEP_ID.fullmatch(options.tags.get(SWEEP_TAG, "")):  # else the run joins the sweep that has ended
        options = replace(
            options, tags={name: tag for name, tag in options.tags.items() if name != SWEEP_TAG}
        )
    words = [] if run.cluster == DEFAULT_CLUSTER else ["--cluster", run.cluster]
    words += ["--mode", run.mode] if run.mode != DEFAULT else []
    for option in options_of(TrainSettings, command="train"):
        value = getattr(options, option.name, None)
        if option.resumed and option.name not in LEFT_OUT and value not in (None, option.default, (), {}):
            words += _typed(option, value)
    words += [word for name in options.env for word in ("--env", name)]
    script = ["--"] if run.built_in else run.script_words
    return shlex.join(["gpuctl", "train", *words, *script, *without_secrets(run.args)])


def _typed(option: Option, value: Any) -> list[str]:  # noqa: ANN401 - an option's value is its own
    """Return an option with its value as words of a command line."""
    if option.kind is bool:
        return [option.flag]
    values = [f"{name}={item}" for name, item in value.items()] if option.mapping else value
    if not option.multiple:
        values = [f"{value:g}s" if option.name.endswith("_s") else value]
    return [word for item in values for word in (option.flag, str(item))]
