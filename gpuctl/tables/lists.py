"""Tables for people: the list of runs, the machines, the shapes.

Each function returns something for `Output.table`. They import rich: import this module where you print.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl import text
from gpuctl.command_results.clusters import ClusterStatus, ClusterSummary, IdleStatus
from gpuctl.command_results.runs import RunInfo
from gpuctl.command_results.upkeep import ReapRow
from gpuctl.scripts.arguments import typed_line
from gpuctl.tables.layout import FittedTable
from gpuctl.tables.run import STATUS_STYLES
from inventories.machine import MachineInfo
from inventories.runs.queue import QueueEntry, QueueStatus
from inventories.text import plural
from provision.records import EndGuard

STATE_STYLES = {
    "running": "green",
    "pending": "cyan",
    "stopped": "yellow",
    "gone": "red",
    "unknown": "yellow",
}
ARGS_SHOWN = 200
"""Of a script's arguments, characters in a cell; it is folded where it does not fit."""


def runs_table(rows: Sequence[RunInfo], now: datetime | None = None) -> RenderableType:
    """The list of runs. Columns that say nothing are left out."""
    columns: dict[str, Callable[[RunInfo], str | Text]] = {
        "run": lambda row: row.run,
        "name": lambda row: row.name or text.UNKNOWN,
        "status": lambda row: Text(row.status, STATUS_STYLES.get(row.status, "yellow")),
        "ranks": lambda row: str(row.world_size or text.UNKNOWN),
        "began": lambda row: text.age(row.started_at or "", now),
        "took": lambda row: text.duration(row.seconds),
        "loss": lambda row: text.UNKNOWN if row.loss is None else text.loss(row.loss),
        "accuracy": lambda row: text.percent(row.accuracy),
    }
    if any(row.cost_usd for row in rows):
        columns["cost"] = lambda row: text.dollars(row.cost_usd)
    columns["changed"] = lambda row: text.UNKNOWN if row.changed is None else row.changed or "nothing"
    columns["script"] = lambda row: text.shorten(typed_line(row.script or text.UNKNOWN, row.args), ARGS_SHOWN)
    return FittedTable(
        columns,
        [[cell(row) for cell in columns.values()] for row in rows],
        right=("ranks",),
        folded=("changed", "script"),
        optional=("ranks", "took", "began", "cost", "accuracy"),
    )


def queue_table(entries: Sequence[QueueEntry], now: datetime | None = None) -> RenderableType:
    """The queue. Columns that say nothing are left out."""
    columns: dict[str, Callable[[QueueEntry], str | Text]] = {
        "entry": lambda row: row.entry,
        "state": lambda row: Text(row.state, STATUS_STYLES.get(row.state, "yellow")),
        "run": lambda row: row.run,
    }
    if len({row.nodes for row in entries if row.nodes}) > 1:
        columns["nodes"] = lambda row: ", ".join(row.nodes) or text.UNKNOWN
    if any(row.name for row in entries):
        columns["name"] = lambda row: row.name or text.UNKNOWN
    if any(row.priority for row in entries):
        columns["priority"] = lambda row: str(row.priority)
    if any(row.after for row in entries):
        columns["after"] = lambda row: row.after or text.UNKNOWN
    columns["added"] = lambda row: text.age(row.added_at or "", now)
    columns["script"] = lambda row: text.shorten(typed_line(row.script, row.args), ARGS_SHOWN)
    return FittedTable(
        columns,
        [[cell(row) for cell in columns.values()] for row in entries],
        right=("entry", "priority"),
        folded=("script",),
        optional=("added",),
    )


def machines_table(cluster: ClusterStatus | ClusterSummary) -> RenderableType:
    """A cluster: price and age, machines, unfinished runs.

    The private addresses are left out where they are the public ones.
    """
    machines = cluster.machines or ()
    price = text.dollars(cluster.hourly_usd)
    ended = bool(machines) and all(machine.state == "gone" for machine in machines)
    about = [
        cluster.provider,
        cluster.region or "",
        plural(len(machines), "machine"),
        ""
        if ended
        else "price not known"
        if price == text.UNKNOWN
        else "disks alone are billed"
        if price == "free" and any(machine.state == "stopped" for machine in machines)
        else price
        if price == "free"
        else f"{price} an hour",
        f"{text.spent(cluster.cost_usd)} so far" if cluster.cost_usd else "",
        f"up {text.duration(cluster.age_s)}" if cluster.age_s is not None else "",
        f"ends at {cluster.expires_at}" if cluster.expires_at else "",
    ]
    head = Text.assemble((cluster.cluster, "bold"), "  ", " · ".join(part for part in about if part))
    columns: dict[str, Callable[[MachineInfo], str | Text]] = {
        "rank": lambda machine: str(machine.rank),
        "name": lambda machine: machine.name,
        "state": lambda machine: Text(machine.state, STATE_STYLES[machine.state]),
        "address": lambda machine: f"{machine.user}@{machine.host}:{machine.port}",
        "private": lambda machine: machine.private_ip,
        "gpus": lambda machine: text.UNKNOWN if machine.gpus is None else str(machine.gpus),
        "id": lambda machine: machine.id,
    }
    if all(machine.private_ip == machine.host for machine in machines):
        del columns["private"]
    if all(machine.host is None for machine in machines):
        del columns["address"]
    table = FittedTable(
        columns,
        [[cell(machine) for cell in columns.values()] for machine in machines],
        right=("rank", "gpus"),
        folded=("id",),
        optional=("private", "id", "gpus", "address"),
    )
    notes = []
    if _is_endless(cluster):
        day_usd = None if cluster.hourly_usd is None else cluster.hourly_usd * 24
        endless = text.nothing_ends(day_usd, f" (gpuctl down --cluster {cluster.cluster} ends them)")
        notes.append(Text(endless, "bold yellow"))
    notes += [Text(_guard_note(guard), "" if guard.armed else "yellow") for guard in cluster.ends or ()]
    if isinstance(cluster, ClusterStatus) and cluster.idle is not None:
        notes.append(_idle_note(cluster.idle))
    if isinstance(cluster, ClusterStatus) and cluster.queue is not None:
        notes.append(_queue_note(cluster.queue))
    notes += [unfinished_note(run, cluster.unheard.get(run) or ()) for run in cluster.runs]
    return Group(head, "", table, *notes)


def _queue_note(queue: QueueStatus) -> Text:
    """Return the line on a cluster's queue."""
    paused = ", paused: gpuctl queue resume starts entries again" if queue.paused else ""
    return Text(
        f"queue: {queue.running} running, {queue.waiting} waiting{paused}", "yellow" if paused else ""
    )


def _is_endless(cluster: ClusterStatus | ClusterSummary) -> bool:
    """Return whether machines of the cluster are billed without an end. False: not known."""
    if isinstance(cluster, ClusterSummary) and cluster.problem:
        return False
    billed = cluster.hourly_usd != 0 and any(machine.state != "gone" for machine in cluster.machines or ())
    unknown = any(
        guard.ends_bill and (guard.armed is None or (guard.armed and guard.guard == "idle"))
        for guard in cluster.ends or ()
    )
    return billed and cluster.expires_at is None and not unknown


def _guard_note(guard: EndGuard) -> str:
    """Return a line on a guard, such as `cloud schedule at 2026-12-04T17:30:00+00:00: armed, ends the bill`."""
    state = {True: "armed", False: "not armed", None: "not known whether it is armed"}[guard.armed]
    bill = "ends the bill" if guard.ends_bill else "does not end the bill"
    problem = f" ({guard.problem})" if guard.problem else ""
    if guard.guard == "idle":
        when = f" at {guard.at} without further use" if guard.at else ""
        means = bill if guard.ends_bill else "`gpuctl reap --idle` then ends the machines and their bill"
        return f"idle{when}: {state}{problem}, {means}"
    return f"{guard.guard} at {guard.at or 'an unknown time'}: {state}{problem}, {bill}"


def _idle_note(idle: IdleStatus) -> Text:
    """Return a line on the use of a cluster that ends without it."""
    in_use = [name for name, used in idle.signals.items() if used]
    unknown = [name for name, used in idle.signals.items() if used is None]
    parts = [f"in use: {', '.join(in_use)}" if in_use else "no use now"]
    parts += [f"not known: {', '.join(unknown)}"] * bool(unknown)
    parts += [f"gpuctl keep puts the end off until {idle.kept_until}"] * bool(idle.kept_until)
    return Text("; ".join(parts))


def unfinished_note(run: str, silent: Sequence[str]) -> Text:
    """Return the note on a run that has not ended."""
    if not silent:
        return Text(f"run {run} is running", "cyan")
    return Text(f"run {run} may be at work on {', '.join(silent)}; gpuctl stop {run} ends it", "yellow")


def found_table(clusters: Sequence[ReapRow]) -> RenderableType:
    """Return the clusters that `reap` found."""
    columns: dict[str, Callable[[ReapRow], str | Text]] = {
        "cluster": lambda row: Text(text.clean(row.cluster), "bold" if row.chosen else "dim"),
        "owner": lambda row: text.clean(row.owner or "") or text.UNKNOWN,
        "where": lambda row: f"{row.provider} {row.region}",
        "what": lambda row: (
            plural(len(row.machines), "machine") if row.machines else plural(len(row.parts), "part")
        ),
        "age": lambda row: text.duration(row.age_s),
        "an hour": lambda row: text.dollars(row.hourly_usd) if row.machines else text.UNKNOWN,
        # As `text.spent`, for a narrow column.
        "so far": lambda row: (
            "< $0.01" if row.cost_usd is not None and row.cost_usd < 0.01 else text.dollars(row.cost_usd)
        ),
        "ends in": lambda row: Text("over", "red") if row.expired else text.duration(row.left_s),
        "id": lambda row: row.id,
    }
    return FittedTable(
        columns,
        [[cell(cluster) for cell in columns.values()] for cluster in clusters],
        right=("an hour", "so far"),
        folded=("cluster", "owner", "where", "id"),
        optional=("so far", "age", "ends in", "what", "an hour", "owner"),
    )


def shapes_table(shapes: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Machine shapes, the elements of the document of `shapes --json`, and when and from where the prices are."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "shape": lambda shape: shape["name"],
        "provider": lambda shape: shape["provider"],
        "GPUs": lambda shape: f"{shape['gpus']} x {shape['gpu']}",
        "GB": lambda shape: str(shape["gpu_memory_gb"]),
        "Gbps": lambda shape: shape["network"] or text.UNKNOWN,
        # `16 x 200`: Gbps of the RDMA network; `4 EFA`: interfaces.
        "RDMA/EFA": lambda shape: shape["rdma"] or (f"{shape['efa']} EFA" if shape["efa"] else text.UNKNOWN),
        "$/h": lambda shape: text.known(shape["usd_per_hour"], "{:,.3f}"),
        "$/GPU-h": lambda shape: text.known(shape["usd_per_gpu_hour"], "{:,.3f}"),
    }
    table = FittedTable(
        columns,
        [[cell(shape) for cell in columns.values()] for shape in shapes],
        right=("GB", "Gbps", "RDMA/EFA", "$/h", "$/GPU-h"),
        optional=("provider", "$/GPU-h", "Gbps", "RDMA/EFA", "GB"),
        steady=True,
    )
    priced: dict[tuple[str, str], dict[str, None]] = {}
    for shape in shapes:
        if shape["priced_at"] is not None:
            place = f"{shape['provider'].upper()} {shape['price_region'] or ''}".rstrip()
            priced.setdefault((shape["priced_at"], shape["price_source"]), {})[place] = None
    notes = [
        Text(f"list prices on demand of {date}: {', '.join(place)} ({source})", "dim")
        for (date, source), place in priced.items()
    ]
    return Group(table, "", *notes) if notes else table
