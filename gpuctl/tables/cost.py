"""The table of what clusters and runs cost. Imports rich: import this module where you print."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl import text
from gpuctl.command_results.clusters import ClusterCost, CostResult
from gpuctl.tables.layout import FittedTable, table_of
from inventories.text import plural

MAX_RUNS = 20
"""Runs that the table has, the latest ones."""


def cost_table(result: CostResult) -> RenderableType:
    """Return the clusters with their runs, the days, and the sum."""
    if not result.clusters:
        return Text(f"nothing was billed since {result.since[:10]}, as far as is known")
    columns: dict[str, Callable[[ClusterCost], str | Text]] = {
        "cluster": lambda cost: Text(text.clean(cost.cluster), "bold"),
        "where": lambda cost: f"{cost.provider} {cost.region or ''}".rstrip(),
        "from": lambda cost: _time(cost.from_),
        "to": lambda cost: "now" if cost.to is None else _time(cost.to),
        "runs": lambda cost: str(len(cost.runs)) if cost.runs else text.UNKNOWN,
        "in runs": lambda cost: text.dollars(_in_runs(cost)) if cost.runs else text.UNKNOWN,
        "cost": lambda cost: text.spent(cost.usd),
    }
    table = FittedTable(
        columns,
        [[cell(cost) for cell in columns.values()] for cost in result.clusters],
        right=("runs", "in runs", "cost"),
        folded=("cluster", "where"),
        optional=("in runs", "runs", "where"),
    )
    days = table_of("day", "cost", right=("cost",))
    for day in result.days:
        days.add_row(day.day, text.spent(day.usd))
    runs = [run for cost in result.clusters for run in cost.runs]
    table_of_runs = table_of("run", "cluster", "cost", right=("cost",))
    for run in runs[-MAX_RUNS:]:
        table_of_runs.add_row(run.run, text.clean(run.cluster), text.spent(run.usd))
    rows_of_runs: list[RenderableType] = [table_of_runs, ""] if runs else []
    if len(runs) > MAX_RUNS:
        rows_of_runs.insert(1, Text(f"and {len(runs) - MAX_RUNS} earlier runs: --json has all", "dim"))
    notes = [
        Text(f"{text.clean(cost.cluster)}: {cost.unknown}", "yellow")
        for cost in result.clusters
        if cost.unknown
    ]
    prefix = "about " if notes else ""
    if not result.complete:
        prefix = "" if result.usd is None else "at least "
    total = f"{prefix}{text.spent(result.usd)} since {result.since[:10]}, {plural(len(result.clusters), 'cluster')}"
    return Group(
        table,
        "",
        *rows_of_runs,
        days,
        "",
        Text(total, "bold"),
        *notes,
        Text("list prices, without taxes, traffic and discounts; times are UTC", "dim"),
    )


def _in_runs(cost: ClusterCost) -> float | None:
    known = [run.usd for run in cost.runs if run.usd is not None]
    return sum(known) if len(known) == len(cost.runs) else None


def _time(iso: str) -> str:
    """Return a time to the minute: `2026-11-21 06:30`."""
    return iso[:16].replace("T", " ")
