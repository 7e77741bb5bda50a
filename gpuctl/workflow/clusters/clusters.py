"""`clusters`: every cluster of this computer with its real state, whatever its provider.

The providers are asked at once. A provider that does not answer blocks no other cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.command_results.clusters import ClusterState, ClusterSummary
from gpuctl.workflow.clusters import status
from gpuctl.workflow.clusters.bill import ending_of
from gpuctl.workflow.clusters.choose_provider import provider_name
from gpuctl.workflow.clusters.status import inventory_now
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.runs.unfinished_runs import OpenRun, open_runs
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.text import plural
from inventories.threads import Calls, Late, values
from provision.clouds import RENTED
from provision.records import EndGuard

AT_ONCE = 8
ANSWER_DEADLINE_S = 60.0
"""For all providers together; the SDKs themselves give up earlier."""


@dataclass(frozen=True, kw_only=True)
class LiveState:
    """A cluster as its provider describes it."""

    inventory: Inventory | None = None
    guards: tuple[EndGuard, ...] | None = None
    """Mechanisms that act at the end of its time. `None`: not known."""
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why its state is not known; empty where it is."""


def every_cluster(app: App) -> list[ClusterSummary]:
    """Return all clusters, or only the named one, the most expensive first. One of unknown state has a `problem`.

    Raises NotFound for an unknown name.
    """
    folders = app.store.clusters()
    if app.cluster_named:
        folders = [folder for folder in folders if folder.name == app.options.cluster]
        if not folders:
            load_inventory(app.store.cluster(app.options.cluster), empty=True)
    queries = Calls(look_at, folders, at_once=AT_ONCE, deadline_s=ANSWER_DEADLINE_S).begin()
    runs = runs_by_cluster(app, app.options.cluster if app.cluster_named else None) if folders else {}
    now = datetime.now(UTC)
    summaries = []
    silent = LiveState(problem=f"its provider did not answer within {ANSWER_DEADLINE_S:.0f} s")
    states = values([silent if isinstance(state, Late) else state for state in queries.outcomes()])
    for folder, live in zip(folders, states, strict=True):
        for note in live.notes:
            app.output.say(f"note: {note}")
        summary = describe(folder, live, runs.get(folder.name, ()), now)
        if summary.problem:
            app.output.say(f"note: {folder.name}: {summary.problem}")
        summaries.append(summary)
    return sorted(summaries, key=_order)


def look_at(folder: ClusterFolder) -> LiveState:
    """Ask the provider for the cluster's state. Never raises."""
    notes: list[str] = []
    try:
        inventory = inventory_now(folder, notes.append)
        guards = status.guards_of(folder, inventory, notes.append)
    except Exception as error:  # noqa: BLE001 - told with the cluster; the others are shown all the same
        return LiveState(notes=tuple(notes), problem=str(error) or repr(error))
    return LiveState(inventory=inventory, guards=guards, notes=tuple(notes))


def describe(
    folder: ClusterFolder, live: LiveState, runs: Sequence[OpenRun], now: datetime
) -> ClusterSummary:
    """Return a cluster's summary as its provider describes it, or else from the files here."""
    if live.inventory is None:
        return _as_known_here(folder, live.problem, runs, now)
    inventory = live.inventory
    try:
        known = status.describe(folder, inventory, runs, now, live.guards)
    except InventoryError as error:
        return _as_known_here(folder, str(error), runs, now)
    # Only `status` asks the machines about their use.
    fields = {name: value for name, value in vars(known).items() if name not in ("idle", "notices", "queue")}
    return ClusterSummary(
        **fields,
        state=state_of(inventory.machines) if folder.exists() else "unfinished",
        shape=inventory.shape,
        billed=inventory.provider in RENTED,
        problem=None,
    )


def _as_known_here(
    folder: ClusterFolder, problem: str, runs: Sequence[OpenRun], now: datetime
) -> ClusterSummary:
    """Return the summary of a cluster whose provider did not answer."""
    provider, inventory = _known_here(folder)
    machines = age_s = None
    if inventory is not None:
        machines = tuple(replace(machine.public(), state="unknown") for machine in inventory.machines)
        age_s = round((now - datetime.fromisoformat(inventory.created_at)).total_seconds())
    return ClusterSummary(
        cluster=folder.name,
        provider=provider,
        region=inventory.region if inventory else None,
        machines=machines,
        hourly_usd=inventory.hourly_usd if inventory else None,
        created_at=inventory.created_at if inventory else None,
        age_s=age_s,
        expires_at=_ending_here(folder, provider),
        ends=None,
        cost_usd=None,
        runs=tuple(run.id for run in runs),
        unheard={run.id: run.silent for run in runs if run.silent},
        state="unknown",
        shape=inventory.shape if inventory else None,
        billed=None if provider is None else provider in RENTED,
        problem=problem,
    )


def state_of(machines: Sequence[Machine]) -> ClusterState:
    """Return the state that all machines share, or `partial`; `gone` for an empty list."""
    states = {machine.state for machine in machines}
    if not states:
        return "gone"
    return states.pop() if len(states) == 1 else "partial"


def _known_here(folder: ClusterFolder) -> tuple[str | None, Inventory | None]:
    """Return a cluster's provider and inventory from the files here."""
    try:
        name = provider_name(folder)
    except InventoryError:
        name = None
    try:
        return name, folder.load() if folder.exists() else None
    except InventoryError:
        return name, None


def _ending_here(folder: ClusterFolder, provider: str | None) -> str | None:
    """Return the planned end of the machines from the files here. `None`: no end, or not known."""
    try:
        return None if provider is None else ending_of(folder, provider)
    except InventoryError:
        return None


def runs_by_cluster(app: App, cluster: str | None) -> dict[str, list[OpenRun]]:
    """Return the unfinished runs of a cluster, or of all, after asking their nodes."""
    runs: dict[str, list[OpenRun]] = {}
    for run in open_runs(app, cluster):
        runs.setdefault(run.folder.load_run().cluster, []).append(run)
    return runs


def _order(cluster: ClusterSummary) -> tuple[bool, float, str]:
    """Return the sort key: the highest price first, unknown prices before all."""
    billed, hourly_usd = cluster.billed is not False, cluster.hourly_usd
    return (
        not billed,
        -(float("inf") if hourly_usd is None else hourly_usd) if billed else 0,
        cluster.cluster,
    )


def totals(clusters: Sequence[ClusterSummary]) -> str:
    """Return `3 clusters, 6 machines, $24.30 an hour, $55.20 so far`: known figures of existing machines."""
    from gpuctl.text import dollars

    parts = [
        plural(len(clusters), "cluster"),
        plural(sum(m.state != "gone" for cluster in clusters for m in cluster.machines or ()), "machine"),
    ]
    billed = [cluster for cluster in clusters if cluster.billed]
    hourly = [cluster.hourly_usd for cluster in billed]
    cost = [cluster.cost_usd for cluster in billed]
    for amounts, unit in ((hourly, "an hour"), (cost, "so far")):
        known = [value for value in amounts if value is not None]
        if any(known):
            prefix = "at least " if len(known) < len(amounts) else ""
            parts.append(f"{prefix}{dollars(sum(known))} {unit}")
    return ", ".join(parts)
