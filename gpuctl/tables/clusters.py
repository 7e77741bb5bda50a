"""The table of all clusters. Imports rich: import this module where you print."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl import text
from gpuctl.command_results.clusters import ClusterSummary
from gpuctl.tables.layout import FittedTable
from gpuctl.tables.lists import STATE_STYLES, unfinished_note

STYLES = {**STATE_STYLES, "partial": "yellow", "unfinished": "yellow"}


def clusters_table(
    clusters: Sequence[ClusterSummary], totals: str, now: datetime | None = None
) -> RenderableType:
    """The clusters; below them what nothing ends, and the runs."""
    now = now or datetime.now(UTC)
    columns: dict[str, Callable[[ClusterSummary], str | Text]] = {
        "cluster": lambda cluster: Text(cluster.cluster, "bold"),
        "provider": lambda cluster: cluster.provider or text.UNKNOWN,
        "region": lambda cluster: cluster.region or text.UNKNOWN,
        "state": lambda cluster: Text(cluster.state, STYLES[cluster.state]),
        "machines": _machines,
        "an hour": _hourly,
        "so far": lambda cluster: (text.spent if cluster.billed else text.dollars)(cluster.cost_usd),
        "age": lambda cluster: text.duration(cluster.age_s),
        "ends": lambda cluster: _ends(cluster, now),
        "runs": lambda cluster: str(len(cluster.runs)) if cluster.runs else text.UNKNOWN,
    }
    table = FittedTable(
        columns,
        [[cell(cluster) for cell in columns.values()] for cluster in clusters],
        right=("an hour", "so far", "runs"),
        folded=("cluster", "machines"),
        optional=("region", "runs", "age", "provider", "ends", "so far", "an hour", "machines"),
    )
    notes = [
        Text(
            f"{cluster.cluster}: nothing ends it: it is billed until gpuctl down --cluster {cluster.cluster}",
            "yellow",
        )
        for cluster in clusters
        if str(_ends(cluster, now)) == "never"
    ]
    for cluster in clusters:
        for run in cluster.runs:
            note = unfinished_note(run, cluster.unheard.get(run) or ())
            notes.append(Text.assemble(f"{cluster.cluster}: ", note))
    return Group(table, "", Text(totals), *notes)


def _machines(cluster: ClusterSummary) -> str:
    """`2 x g5.12xlarge`, `1 of 2 x g5.12xlarge` where one runs, or `2`."""
    if cluster.machines is None:
        return text.UNKNOWN
    shape = f" x {cluster.shape}" if cluster.shape and cluster.billed else ""
    states = [machine.state for machine in cluster.machines]
    running = f"{states.count('running')} of " if cluster.state == "partial" else ""
    return f"{running}{len(states)}{shape}"


def _hourly(cluster: ClusterSummary) -> str:
    if _ended(cluster):
        return text.UNKNOWN
    return "disks" if cluster.billed and cluster.hourly_usd == 0 else text.dollars(cluster.hourly_usd)


def _ended(cluster: ClusterSummary) -> bool:
    """Return whether the cluster had rented machines and has none any more."""
    return bool(cluster.billed) and cluster.state == "gone"


def _ends(cluster: ClusterSummary, now: datetime) -> str | Text:
    """Return the time at which its machines end."""
    if not cluster.billed or cluster.problem or not cluster.machines or _ended(cluster):
        return text.UNKNOWN
    if cluster.expires_at is None and any(
        end.guard == "idle" and end.ends_bill for end in cluster.ends or ()
    ):
        return "without use"
    if cluster.expires_at is None:
        return Text("never", "yellow")
    left_s = (datetime.fromisoformat(cluster.expires_at) - now).total_seconds()
    return f"in {text.duration(left_s)}" if left_s > 0 else Text("over", "red")
