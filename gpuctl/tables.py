"""Tables for people: one run, several side by side, the list of runs, the machines.

Each function returns something for `Output.table`. They import rich: import this module where you print.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from gpuctl import text
from inventories.run import RankResult, Result, Share

STATUS_STYLES = {"succeeded": "green", "failed": "red", "stopped": "yellow", "running": "cyan"}
STATE_STYLES = {
    "running": "green",
    "pending": "cyan",
    "stopped": "yellow",
    "gone": "red",
    "unknown": "yellow",
}
STRAGGLER = 1.2
"""A rank is a straggler whose step takes this many times the median of all ranks."""
RANKS_SHOWN = 32
"""In a larger run only the ranks are listed that failed or straggle."""
SHARE_WIDTH = 40
LOG_LINES = 15
LOG_BYTES = 16_384
FILES_COUNTED = 1000
LABEL_WIDTH = 10


def run_table(result: Result) -> RenderableType:
    """One run's table; what failed comes first, with the end of its log from the run's folder."""
    folder = Path(result.dir)
    failed = result.first_error.rank if result.first_error else None
    tail = "" if failed is None else end_of(folder / "logs" / f"rank-{failed}.log")
    return draw_run(result, log_tail=tail, artifacts=files_under(folder / "artifacts"))


def end_of(path: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def files_under(folder: Path) -> list[str]:
    """The names of the files in a folder and below it; none where there is no such folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in itertools.islice(found, FILES_COUNTED))


def draw_run(result: Result, *, log_tail: str = "", artifacts: Sequence[str] = ()) -> RenderableType:
    """One run's table, of what is given. `log_tail`: of the rank that failed first."""
    parts: list[RenderableType] = []
    if result.first_error:
        parts += [_first_error(result, log_tail), ""]
    parts += [_head(result), "", _facts(result)]
    if _known(result.train.share):
        parts += ["", _share(result.train.share)]
    parts += ["", _ranks(result.ranks), "", _tail(result, artifacts)]
    return Group(*parts)


def _head(result: Result) -> Text:
    """`run ID  succeeded`, and what it was."""
    head = Text.assemble(
        ("run ", ""),
        (result.run, "bold"),
        "  ",
        (result.status, f"bold {STATUS_STYLES[result.status]}"),
    )
    size = f"{text.plural(result.nnodes, 'node')}, {text.plural(result.world_size, 'rank')}"
    head.append(f"\n{text.clean(result.script)} · {result.mode} · {size} · cluster {result.cluster}", "dim")
    return head


def _first_error(result: Result, log_tail: str) -> Text:
    """Which rank failed first, why, and the last lines of its log."""
    error = result.first_error
    assert error is not None
    who = f"rank {error.rank} on {error.node}" if error.rank is not None else error.node
    shown = Text.assemble((f"{who} failed first: ", "bold red"), text.clean(error.message))
    lines = [text.clean(line) for line in log_tail.rstrip().split("\n")][-LOG_LINES:]
    if any(lines):
        shown.append("\nthe end of its log:")
    for line in lines if any(lines) else []:
        shown.append("\n  │ ", "red")
        shown.append(line)
    return shown


def _facts(result: Result) -> Table:
    """What was trained, and how well and fast, in two columns."""
    train = result.train
    step = train.step_ms
    left = [
        ("model", text.clean(train.model or text.UNKNOWN)),
        ("dataset", text.clean(train.dataset or text.UNKNOWN)),
        (
            "strategy",
            text.clean(", ".join(part for part in (train.strategy, train.device) if part) or text.UNKNOWN),
        ),
        ("epochs", _epochs(result)),
    ]
    right = [
        ("accuracy", text.percent(train.accuracy)),
        ("loss", _loss(train.loss)),
        ("samples/s", text.count(train.samples_per_s)),
        (
            "step",
            f"{text.milliseconds(step.p50)} (p95 {text.milliseconds(step.p95)})"
            if step.p50
            else text.UNKNOWN,
        ),
    ]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", width=LABEL_WIDTH)
    grid.add_column(min_width=22)
    grid.add_column(style="dim", width=LABEL_WIDTH)
    grid.add_column()
    for (name, value), (other, second) in zip(left, right, strict=True):
        grid.add_row(name, value, other, second)
    return grid


def _epochs(result: Result) -> str:
    """`3 x 1.2 s`: how many, and the median of their times."""
    times = result.train.epoch_s
    number = result.train.epochs or len(times) or None
    if not times:
        return text.UNKNOWN if number is None else str(number)
    return f"{number} x {text.duration(statistics.median(times))}"


def _loss(losses: Sequence[float]) -> str:
    """`0.912 0.301 0.120`, or the first and the last with their course between."""
    shown = [text.loss(loss) for loss in losses]
    if not shown:
        return text.UNKNOWN
    if len(shown) <= 4:
        return " ".join(shown)
    middle = [losses[round(at * (len(losses) - 1) / 15)] for at in range(16)] if len(losses) > 16 else losses
    return f"{shown[0]} {text.sparkline(middle)} {shown[-1]}"


def _known(share: Share) -> bool:
    return None not in (share.compute, share.communication, share.data)


def _share(share: Share) -> Text:
    """One bar: what a step's time goes into."""
    parts = (
        ("compute", share.compute or 0.0, "█", "green"),
        ("communication", share.communication or 0.0, "▓", "yellow"),
        ("data", share.data or 0.0, "░", "cyan"),
    )
    shown = Text("step time".ljust(LABEL_WIDTH + 2), "dim", end="")
    drawn, so_far = 0, 0.0
    for _, fraction, character, style in parts:
        so_far += max(fraction, 0.0)
        upto = min(round(so_far * SHARE_WIDTH), SHARE_WIDTH)
        shown.append(character * (upto - drawn), style)
        drawn = max(upto, drawn)
    shown.append("\n" + " " * (LABEL_WIDTH + 2))
    for name, fraction, character, style in parts:
        shown.append(f"{character} ", style)
        shown.append(f"{name} {text.percent(fraction)}   ", "")
    shown.rstrip()
    return shown


def _ranks(ranks: Sequence[RankResult]) -> RenderableType:
    """A line a rank; of a large run only those that failed or straggle, and how the others were."""
    times = [rank.step_ms_p50 for rank in ranks if rank.step_ms_p50 is not None]
    usual = statistics.median_low(times) if times else None

    def slow(rank: RankResult) -> bool:
        return bool(usual and rank.step_ms_p50 and rank.step_ms_p50 > usual * STRAGGLER)

    shown = [rank for rank in ranks if len(ranks) <= RANKS_SHOWN or slow(rank) or rank.exit_code != 0]
    table = _table("rank", "node", "device", "exit", "step p50", "", right=("rank", "exit", "step p50"))
    for rank in shown[:RANKS_SHOWN]:
        remark = ""
        if slow(rank):
            remark = f"straggler: {(rank.step_ms_p50 or 0.0) / (usual or 1.0):.1f} x the median"
        table.add_row(
            str(rank.rank),
            rank.node,
            text.clean(rank.device or text.UNKNOWN),
            _exit(rank.exit_code),
            text.milliseconds(rank.step_ms_p50),
            Text(remark, "yellow"),
        )
    left_out = len(ranks) - len(shown[:RANKS_SHOWN])
    if not left_out:
        return table
    well = f", step p50 {text.milliseconds(min(times))} .. {text.milliseconds(max(times))}" if times else ""
    rest = Text(
        f"{text.plural(left_out, 'more rank')}; of all ranks{well}" if well else f"{left_out} more ranks",
        "dim",
    )
    return Group(table, rest) if shown else rest


def _exit(code: int | None) -> Text:
    if code is None:
        return Text("?", "yellow")
    return Text(str(code), "" if code == 0 else "red")


def _tail(result: Result, artifacts: Sequence[str]) -> Table:
    """Where the time went, what it cost, where the files are."""
    seconds = result.seconds
    phases = [
        f"{name} {text.duration(value)}"
        for name in ("connect", "prepare", "preflight", "launch", "train", "collect", "total")
        if (value := getattr(seconds, name)) is not None
    ]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", width=LABEL_WIDTH)
    grid.add_column(overflow="fold")
    grid.add_row("time", " · ".join(phases) or text.UNKNOWN)
    grid.add_row("cost", text.dollars(result.cost_usd))
    grid.add_row("files", result.dir)
    if artifacts:
        names = [text.clean(name, 60) for name in artifacts[:5]]
        more = f" and {len(artifacts) - 5} more" if len(artifacts) > 5 else ""
        grid.add_row("artifacts", ", ".join(names) + more)
    return grid


def comparison_table(results: Sequence[Result]) -> RenderableType:
    """Several runs side by side, a column each; in blocks where the terminal is too narrow."""
    return _Comparison(results)


class _Comparison:
    """Draws itself once the width is known."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = tuple(results)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = max(1, (options.max_width - 14) // 22)
        for at in range(0, len(self.results), columns):
            if at:
                yield ""
            yield self._block(self.results[at : at + columns])

    def _block(self, results: Sequence[Result]) -> Table:
        table = _table("", *(result.run for result in results))
        for name, value in COMPARED:
            cells = [value(result, self.results[0]) for result in results]
            if any(cell != text.UNKNOWN for cell in cells):
                styles = [STATUS_STYLES.get(cell, "") if name == "status" else "" for cell in cells]
                table.add_row(
                    Text(name, "dim"), *(Text(cell, style) for cell, style in zip(cells, styles, strict=True))
                )
        return table


def speed_up(result: Result, base: Result) -> float | None:
    """How many times as fast as `base` the same job ran; None where it isn't the same, or not known."""
    same = (result.script, result.train.model, result.train.dataset) == (
        base.script,
        base.train.model,
        base.train.dataset,
    )
    if not same or result is base or not result.train.samples_per_s or not base.train.samples_per_s:
        return None
    return result.train.samples_per_s / base.train.samples_per_s


def _speed_up(result: Result, base: Result) -> str:
    factor = speed_up(result, base)
    if factor is None:
        return text.UNKNOWN
    return f"{factor:.2f} x ({text.percent(factor * base.world_size / result.world_size)})"


COMPARED: tuple[tuple[str, Callable[[Result, Result], str]], ...] = (
    ("status", lambda result, _: result.status),
    ("cluster", lambda result, _: result.cluster),
    ("script", lambda result, _: text.clean(result.script)),
    ("ranks", lambda result, _: f"{result.world_size} on {text.plural(result.nnodes, 'node')}"),
    ("model", lambda result, _: text.clean(result.train.model or text.UNKNOWN)),
    ("dataset", lambda result, _: text.clean(result.train.dataset or text.UNKNOWN)),
    ("device", lambda result, _: text.clean(result.train.device or text.UNKNOWN)),
    ("accuracy", lambda result, _: text.percent(result.train.accuracy)),
    ("loss", lambda result, _: text.loss(result.train.loss[-1]) if result.train.loss else text.UNKNOWN),
    ("epochs", lambda result, _: _epochs(result)),
    ("samples/s", lambda result, _: text.count(result.train.samples_per_s)),
    ("speed-up", _speed_up),
    ("step p50", lambda result, _: text.milliseconds(result.train.step_ms.p50)),
    ("step p95", lambda result, _: text.milliseconds(result.train.step_ms.p95)),
    ("compute", lambda result, _: text.percent(result.train.share.compute)),
    ("communication", lambda result, _: text.percent(result.train.share.communication)),
    ("data", lambda result, _: text.percent(result.train.share.data)),
    ("train", lambda result, _: text.duration(result.seconds.train)),
    ("total", lambda result, _: text.duration(result.seconds.total)),
    ("cost", lambda result, _: text.dollars(result.cost_usd)),
)
"""(row, how a result and the first of them make its cell), …"""


def runs_table(rows: Sequence[Mapping[str, Any]], now: datetime | None = None) -> RenderableType:
    """The list of runs: the elements of the document of `runs --json`."""
    table = _table("run", "status", "script", "ranks", "began", "took", "accuracy", "cost", right=("ranks",))
    for row in rows:
        table.add_row(
            row["run"],
            Text(row["status"], STATUS_STYLES[row["status"]]),
            text.clean(row["script"], 24),
            str(row["world_size"]),
            f"{text.age(row['started_at'], now)} ago",
            text.duration(row["seconds"]),
            text.percent(row["accuracy"]),
            text.dollars(row["cost_usd"]),
        )
    return table


def machines_table(cluster: Mapping[str, Any]) -> RenderableType:
    """A cluster, the document of `up --json` or `status --json`: price and age, machines, unfinished runs."""
    machines = cluster["machines"]
    price = text.dollars(cluster["hourly_usd"])
    about = [
        cluster["provider"],
        cluster["region"] or "",
        text.plural(len(machines), "machine"),
        "price not known" if price == text.UNKNOWN else price if price == "free" else f"{price} an hour",
        f"{text.dollars(cluster['cost_usd'])} so far" if cluster.get("cost_usd") else "",
        f"up {text.duration(cluster['age_s'])}" if "age_s" in cluster else "",
    ]
    head = Text.assemble((cluster["cluster"], "bold"), "  ", " · ".join(part for part in about if part))
    table = _table("rank", "name", "state", "address", "private", "gpus", "id", right=("rank", "gpus"))
    for machine in machines:
        table.add_row(
            str(machine["rank"]),
            machine["name"],
            Text(machine["state"], STATE_STYLES[machine["state"]]),
            f"{machine['user']}@{machine['host']}:{machine['port']}",
            machine["private_ip"],
            text.UNKNOWN if machine["gpus"] is None else str(machine["gpus"]),
            machine["id"],
        )
    unfinished = cluster.get("runs") or ()
    return Group(head, "", table, *(Text(f"run {run} is not over", "cyan") for run in unfinished))


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table in the style of all of them: no lines, a dim head."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
