"""One run's table: failure, training figures, speed, time and money, files.

Imports rich: import this module where you print.
"""

import itertools
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from gpuctl import text
from gpuctl.run_results.advice import advice_on, notes_on
from gpuctl.run_results.failures.failures import headline, how_it_ended
from gpuctl.run_results.saved_results import earlier_of, launch_of, nothing_was_left
from gpuctl.run_results.time_parts import time_lines
from gpuctl.run_results.utilisation import use_lines
from gpuctl.scripts.arguments import typed_line
from gpuctl.tables.layout import GAP, STEP_PARTS, FittedTable, bar_of, table_of
from gpuctl.tables.outputs import OutputLines
from gpuctl.tables.run_facts import LABEL_WIDTH, commit_text, epochs_text, facts_table, tags_text
from gpuctl.tables.tune import search_table
from gpuctl.tables.view import log_line
from inventories.runs.labels import MAX_NAME
from inventories.runs.result import RankResult, Result, Seconds, Share, UnusedMetrics
from inventories.text import plural
from remote.end_sentences import signal_name
from remote.launchers import drives_itself

STATUS_STYLES = {"succeeded": "green", "failed": "red", "stopped": "yellow", "running": "cyan"}
STRAGGLER = 1.3
"""A rank is a straggler whose step takes this many times the median of all ranks."""
STRAGGLER_STEPS = 20
"""Minimum steps of a rank for a judgement: the median of a few steps is chance."""
RUNS_SHOWN = 8
"""Of a job in more runs only the latest are listed."""
RANKS_SHOWN = 32
"""In a larger run only the ranks are listed that failed or straggle."""
TRIALS_SHOWN = 10
SHARE_WIDTH = 40
LOG_LINES = 20
LOG_BYTES = 16_384
LINES_SEEN = 3
"""The end of a log is not repeated if its last lines, as many as this, were just printed."""
FILES_COUNTED = 1000
PHASES = ("connect", "prepare", "preflight", "ray", "launch", "train", "collect", "total")


def run_table(result: Result, *, printed: Collection[str] = ()) -> RenderableType:
    """Show one run's table, the failure first, with the end of its log from the run's folder.

    If a node failed and no rank, the log is its launcher's. Logs whose last lines are in `printed` are left out.
    """
    folder, error, run = Path(result.dir), result.first_error, launch_of(result)
    log_name = (error.node if error.rank is None else f"rank-{error.rank}") if error else None
    log = f"{log_name}.log" if log_name else ""
    tail = end_of(folder / "logs" / log)
    last = [log_line(error.rank, "", line) for line in tail.splitlines()[-LINES_SEEN:]] if error else []
    if error and error.rank is not None and last and set(last).issubset(printed):
        tail = ""
    artifacts = files_under(folder / "artifacts")
    return draw_run(
        result,
        args=run.args if run else (),
        advice=advice_on(result, run),
        notes=notes_on(result, run),
        log_tail=tail,
        artifacts=artifacts,
        earlier=earlier_of(result),
    )


def end_of(path: Path) -> str:
    """Return the end of a log. Empty: no such log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def files_under(folder: Path) -> list[str]:
    """Return the names of the files in a folder and below it. Empty: no such folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in itertools.islice(files, FILES_COUNTED))


def draw_run(
    result: Result,
    *,
    args: Sequence[str] = (),
    advice: str = "",
    notes: Sequence[str] = (),
    log_tail: str = "",
    artifacts: Sequence[str] = (),
    earlier: Sequence[Result] = (),
) -> RenderableType:
    """Show one run's table from the given parts.

    `args`: the script's. `advice`: on the failure or the hang. `notes`: possible differences from the intended run.
    `log_tail`: of the first failure. `earlier`: the runs that it continues, oldest first.
    """
    parts: list[RenderableType] = []
    if result.first_error:
        parts += [_first_error(result, advice, log_tail), ""]
    elif result.logged_error:
        parts += [Text(text.clean(result.logged_error.message), "bold yellow"), ""]
    if result.hang:
        parts.append(Text(text.clean(result.hang.sentence, 10_000), "yellow"))
        parts += [Text(text.clean_lines(advice)), ""] if advice and not result.first_error else [""]
    for note in notes:
        parts += [Text(text.clean(note, 10_000), "yellow"), ""]
    parts += [_Head(result, args), ""]
    if result.status == "running":
        hint = "why --stacks {0} shows where all ranks are" if result.hang else "logs -f {0} follows it"
        running = f"It is not over: gpuctl {hint.format(result.run)}, gpuctl stop {result.run} ends it."
        parts += [Text(running), ""]
    if facts := facts_table(result):
        parts += [facts, ""]
    if nothing_was_left(result):
        more = (
            "nothing was left to train; more epochs: gpuctl train --resume -- --epochs N "
            f"(N larger than {max(result.train.epochs or 0, result.train.epochs_before or 0)})"
        )
        parts += [Text(text.for_cluster(more, result.cluster)), ""]
    if result.unused_metrics:
        parts += [Text(text.clean(_unused(result.unused_metrics)), "yellow"), ""]
    if result.search and result.search.trials:
        words = args if result.script == "tune built-in" else None
        parts += [search_table(result.search, words, max_rows=TRIALS_SHOWN), ""]
    if result.train.share.known:
        parts += [_Share(result.train.share), ""]
    lines = [*time_lines(result.train), *(use_lines(result.usage) if result.usage else ())]
    if lines:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", width=LABEL_WIDTH)
        grid.add_column(overflow="fold")
        for line in lines:
            grid.add_row(*line)
        parts += [grid, ""]
    parts += [
        _ranks(result),
        "",
        _Phases(result.seconds),
        "",
        _tail(result, artifacts),
    ]
    if result.output_totals or result.outside:
        parts.append(OutputLines(result))
    if earlier:
        parts += ["", _job([*earlier, result])]
    return Group(*parts)


def _unused(metrics: UnusedMetrics) -> str:
    """Return the sentence on lines of metrics of which a part is not used."""
    lines = f"{plural(metrics.lines, 'line')} in GPUCTL_METRICS {'is' if metrics.lines == 1 else 'are'}"
    return (
        f"{lines} not used, or only in part, such as `{metrics.example}` of rank {metrics.rank}: {metrics.why}. "
        'Write each line with json.dumps, such as {"step": 10, "loss": 0.4}'
    )


class _Head:
    """Return the head: `run ID  succeeded`, and its command, size and machines.

    A long command has a line of its own, shortened to the width.
    """

    def __init__(self, result: Result, args: Sequence[str]) -> None:
        self.result = result
        self.command = typed_line(result.script, args)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        result = self.result
        status = (result.status, f"bold {STATUS_STYLES[result.status]}")
        name = f"  {text.clean(result.name, MAX_NAME)}" if result.name else ""
        yield Text.assemble("run ", (result.run, "bold"), name, "  ", status)
        size = f"{plural(result.nnodes, 'node')}, {plural(result.world_size, 'rank')}"
        if result.ranks and drives_itself(result.mode, built_in=result.script == "built-in"):
            size = f"driver on {result.ranks[0].node}"  # the driver decides how much of the cluster it uses
        about = f"{result.mode} · {size} · cluster {result.cluster}"
        if len(line := f"{self.command} · {about}") <= options.max_width:
            yield Text(line, "dim")
        else:
            yield Text(text.shorten(self.command, max(options.max_width, 2)), "dim")
            yield Text(about, "dim")


def _first_error(result: Result, advice: str, log_tail: str) -> RenderableType:
    """Show the first failed rank, its reason, advice, and the last lines of its log."""
    error = result.first_error
    assert error is not None
    subject, reason = headline(error)
    shown = Text.assemble((subject, "bold red"), text.clean(reason))
    lines = [text.clean(line, LOG_BYTES) for line in log_tail.rstrip().split("\n")][-LOG_LINES:]
    texts = [shown, text.clean_lines(advice)] if advice else [shown]
    return Group(*texts, "the end of its log:", _Log(lines)) if any(lines) else Group(*texts)


class _Log:
    """Lines of a log, each behind a bar; where they are folded, the bar is repeated."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar = "  │ "
        for line in self.lines:
            for part in chop_cells(line.expandtabs(), max(options.max_width - len(bar), 2)) or [""]:
                yield Text.assemble((bar, "red"), part, no_wrap=True, overflow="ignore")


class _Share:
    """A bar with the parts of a step's time, and their names below it."""

    def __init__(self, share: Share) -> None:
        self.share = share

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = LABEL_WIDTH + 2
        shown = Text("step time".ljust(indent), "dim")
        for character, style, count in bar_of(
            self.share, max(min(SHARE_WIDTH, options.max_width - indent), 1)
        ):
            shown.append(character * count, style)
        yield shown
        lines: list[Text] = []
        for name, character, style in STEP_PARTS:
            part = Text.assemble(
                (f"{character} ", style), f"{name} {text.percent(getattr(self.share, name))}"
            )
            if lines and lines[-1].cell_len + 3 + part.cell_len <= options.max_width:
                lines[-1] = lines[-1] + "   " + part
            else:
                lines.append(Text(" " * indent) + part)
        yield from lines


def _ranks(result: Result) -> RenderableType:
    """Show a line a rank; of a large run only failed ranks and stragglers, and a summary of the others."""
    ranks, error = result.ranks, result.first_error
    unknown = Text(text.UNKNOWN) if result.status == "running" else Text("?", "yellow")
    times = [rank.step_ms_p50 for rank in ranks if rank.step_ms_p50 is not None]
    slow, first = _stragglers(ranks), error.rank if error else None
    shown = [r for r in ranks if len(ranks) <= RANKS_SHOWN or r.rank in (*slow, first) or r.exit_code != 0]
    shown = sorted(shown, key=lambda rank: rank.rank != first)[:RANKS_SHOWN]
    columns: dict[str, Callable[[RankResult], str | Text]] = {
        "rank": lambda rank: str(rank.rank),
        "node": lambda rank: rank.node,
        "device": lambda rank: text.clean(rank.device or text.UNKNOWN, 30),
        "exit": lambda rank: unknown if rank.exit_code is None else _exit(rank.exit_code),
        "step p50": lambda rank: text.milliseconds(rank.step_ms_p50),
    }
    rows: list[list[str | Text]] = []
    for rank in sorted(shown, key=lambda rank: rank.rank):
        remark = Text(f"{how_it_ended(error)} first" if error and rank.rank == first else "", "red")
        if rank.rank in slow:
            remark = Text(f"straggler: {slow[rank.rank]:.1f} times the median", "yellow")
        rows.append([*(cell(rank) for cell in columns.values()), remark])
    table = FittedTable(
        [*columns, ""],
        rows,
        right=("rank", "exit", "step p50"),
        folded=("",),
        optional=("device", "step p50"),
    )
    left_out = len(ranks) - len(shown)
    if not left_out:
        return table
    rest = plural(left_out, "more rank" if shown else "rank")
    if times:
        rest += f"; step p50 of all ranks {text.milliseconds(min(times))} to {text.milliseconds(max(times))}"
    return Group(table, Text(rest, "dim")) if shown else Text(rest)


def _stragglers(ranks: Sequence[RankResult]) -> dict[int, float]:
    """Rank → how many times the median of all ranks its step takes. Of two, the median is the faster one's."""
    paces = {
        rank.rank: ms
        for rank in ranks
        if (ms := rank.step_ms_p50) is not None and ms > 0 and (rank.steps or 0) >= STRAGGLER_STEPS
    }
    if not paces:
        return {}
    usual = statistics.median_low(paces.values())
    return {rank: ms / usual for rank, ms in paces.items() if ms > usual * STRAGGLER}


def _exit(code: int) -> Text:
    """`0`, `3` or `SIGKILL`."""
    return Text(signal_name(-code) if code < 0 else str(code), "red" if code else "")


class _Phases:
    """A column a phase, with how long it took; in blocks where the terminal is too narrow."""

    def __init__(self, seconds: Seconds) -> None:
        self.took = {
            name: text.duration(getattr(seconds, name))
            for name in PHASES
            if getattr(seconds, name) is not None
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label, names = "time", list(self.took)
        while names or label:
            room = itertools.accumulate(
                (GAP + max(len(name), len(self.took[name])) for name in names), initial=LABEL_WIDTH
            )
            fit = sum(width <= options.max_width for width in room) - 1
            block, names = names[: max(fit, 1)], names[max(fit, 1) :]
            table = table_of(label.ljust(LABEL_WIDTH), *block, right=block)
            table.add_row("", *(self.took[name] for name in block))
            yield table
            label = ""


def _job(runs: Sequence[Result]) -> RenderableType:
    """A line a run of a job that took several, and what they come to."""
    columns: dict[str, Callable[[Result], str | Text]] = {
        "run": lambda run: run.run,
        "status": lambda run: Text(run.status, STATUS_STYLES[run.status]),
        "ranks": lambda run: f"{run.world_size} on {plural(run.nnodes, 'node')}",
        "epochs": epochs_text,
        "took": lambda run: text.duration(run.seconds.total),
        "cost": lambda run: text.dollars(run.cost_usd),
    }
    if not any(run.cost_usd for run in runs):
        del columns["cost"]
    table = FittedTable(
        columns,
        [[cell(run) for cell in columns.values()] for run in runs[-RUNS_SHOWN:]],
        right=("took", "cost"),
        optional=("ranks", "cost", "took"),
    )
    took = _sum(run.seconds.total for run in runs)
    cost = _sum(run.cost_usd for run in runs)
    together = f"the job's {plural(len(runs), 'run')}, {text.duration(took)} together"
    if cost:
        together += f", {text.dollars(cost)}"
    if len(runs) > RUNS_SHOWN:
        together += f"; the latest {RUNS_SHOWN} are shown"
    if runs[0].resumed_from:
        together += f"; the result of {runs[0].resumed_from}, before them, can't be read"
    return Group(table, Text(together, "dim"))


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum, where all are known."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _tail(result: Result, artifacts: Sequence[str]) -> Table:
    """Show the cost and the files."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", width=LABEL_WIDTH)
    grid.add_column(overflow="fold")
    if result.note:
        grid.add_row("note", text.clean(result.note))
    if result.tags:
        grid.add_row("tags", text.clean(tags_text(result)))
    if result.resumed_from:
        grid.add_row("resumed", f"from run {result.resumed_from}")
    if result.commit:
        grid.add_row("commit", commit_text(result))
    if result.cost_usd is not None:
        grid.add_row("cost", text.dollars(result.cost_usd))
    grid.add_row("files", text.with_tilde(result.dir))
    if artifacts:
        names = [text.clean(name, 60) for name in artifacts[:5]]
        more = f" and {len(artifacts) - 5} more" if len(artifacts) > 5 else ""
        grid.add_row("artifacts", ", ".join(names) + more)
    return grid
