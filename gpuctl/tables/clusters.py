"""The table of all clusters. Imports rich: import this module where you print."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from gpuctl import text
from gpuctl.json_documents import ClusterSummary
from gpuctl.tables.layout import FittedTable
from gpuctl.tables.lists import STATE_STYLES, unfinished_note

STYLES = {**STATE_STYLES, "partial": "yellow", "unfinished": "yellow"}


def clusters_table(
    clusters: Sequence[ClusterSummary], totals: str, now: datetime | None = None
) -> RenderableType:
    """The clusters; below them what nothing ends, and the runs."""
    now = now or datetime.now(UTC)
    columns: dict[str, Callable[[ClusterSummary], str | Text]] = {
        "cluster": lambda one: Text(one.cluster, "bold"),
        "provider": lambda one: one.provider or text.UNKNOWN,
        "region": lambda one: one.region or text.UNKNOWN,
        "state": lambda one: Text(one.state, STYLES[one.state]),
        "machines": _machines,
        "an hour": _hourly,
        "so far": _so_far,
        "age": lambda one: text.duration(one.age_s),
        "ends": lambda one: _ends(one, now),
        "runs": lambda one: str(len(one.runs)) if one.runs else text.UNKNOWN,
    }
    table = FittedTable(
        columns,
        [[cell(one) for cell in columns.values()] for one in clusters],
        right=("an hour", "so far", "runs"),
        folded=("cluster", "machines"),
        least=("region", "runs", "age", "provider", "ends", "so far", "an hour", "machines"),
    )
    return Group(table, "", Text(totals), *_notes(clusters))


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


def _so_far(cluster: ClusterSummary) -> str:
    return text.spent(cluster.cost_usd) if cluster.billed else text.dollars(cluster.cost_usd)


def _ended(cluster: ClusterSummary) -> bool:
    """Whether it had rented machines, and none of them is left."""
    return bool(cluster.billed) and cluster.state == "gone"


def _ends(cluster: ClusterSummary, now: datetime) -> str | Text:
    """When its machines end by themselves."""
    if not cluster.billed or cluster.problem or not cluster.machines or _ended(cluster):
        return text.UNKNOWN
    if cluster.expires_at is None:
        return Text("never", "yellow")
    left_s = (datetime.fromisoformat(cluster.expires_at) - now).total_seconds()
    return f"in {text.duration(left_s)}" if left_s > 0 else Text("over", "red")


def _notes(clusters: Sequence[ClusterSummary]) -> list[Text]:
    notes = [
        Text(
            f"{one.cluster}: nothing ends it: it is billed until gpuctl down --cluster {one.cluster}",
            "yellow",
        )
        for one in clusters
        if str(_ends(one, datetime.now(UTC))) == "never"
    ]
    for one in clusters:
        for run in one.runs:
            note = unfinished_note(run, one.unheard.get(run) or ())
            notes.append(Text.assemble(f"{one.cluster}: ", note))
    return notes
