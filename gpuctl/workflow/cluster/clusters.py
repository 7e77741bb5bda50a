"""`clusters`: every cluster of this computer with its real state, whatever its provider.

All providers are asked at once. One that can't be asked, or does not answer, keeps no other cluster from being shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from gpuctl.options import App
from gpuctl.text import plural
from gpuctl.workflow.asking import Asking
from gpuctl.workflow.cluster.chosen import provider_name
from gpuctl.workflow.cluster.status import document_of, ending_of, inventory_now
from gpuctl.workflow.connect import load_inventory
from gpuctl.workflow.training.open_runs import OpenRun, open_runs
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine, MachineState
from inventories.store import ClusterFolder
from provision.registry import CLOUDS

ClusterState = MachineState | Literal["partial", "unfinished"]
"""`partial`: its machines are not all in one state. `unfinished`: its first `up` did not come to its end."""

AT_ONCE = 8
ANSWER_DEADLINE_S = 60.0
"""For all providers together; the SDKs themselves give up earlier."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A cluster as its provider tells of it."""

    inventory: Inventory | None = None
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why its state is not known; empty where it is."""


def every_cluster(app: App) -> list[dict[str, Any]]:
    """The documents of `clusters --json`, the most expensive first. Those not known have a `problem`.

    Only the one that was named, where one was. Raises NotFound where there is none of that name.
    """
    folders = app.store.clusters()
    if app.cluster_named:
        folders = [folder for folder in folders if folder.name == app.options.cluster]
        if not folders:
            load_inventory(app.store.cluster(app.options.cluster))
    by_name = {folder.name: folder for folder in folders}
    asked = Asking(look_at, by_name, at_once=AT_ONCE, deadline_s=ANSWER_DEADLINE_S)
    runs = runs_by_cluster(app, app.options.cluster if app.cluster_named else None) if folders else {}
    now = datetime.now(UTC)
    documents = []
    silent = Seen(problem=f"its provider did not answer within {ANSWER_DEADLINE_S:.0f} s")
    answers = asked.answers()
    for folder in folders:
        seen = answers.get(folder.name, silent)
        for note in seen.notes:
            app.output.say(f"note: {note}")
        document = describe(folder, seen, runs.get(folder.name, ()), now)
        if document["problem"]:
            app.output.say(f"note: {folder.name}: {document['problem']}")
        documents.append(document)
    return sorted(documents, key=_order)


def look_at(folder: ClusterFolder) -> Seen:
    """The cluster, asked of its provider. Never raises."""
    notes: list[str] = []
    try:
        inventory = inventory_now(folder, notes.append)
    except Exception as error:  # noqa: BLE001 - told with the cluster; the others are shown all the same
        return Seen(notes=tuple(notes), problem=str(error) or repr(error))
    return Seen(inventory=inventory, notes=tuple(notes))


def describe(folder: ClusterFolder, seen: Seen, runs: Sequence[OpenRun], now: datetime) -> dict[str, Any]:
    """One cluster: the document of `status --json`, with its `state`, `shape`, `billed` and `problem`."""
    if seen.inventory is not None:
        inventory = seen.inventory
        try:
            known = document_of(folder, inventory, runs, now)
        except InventoryError as error:
            return describe(folder, Seen(problem=str(error)), runs, now)
        state: ClusterState = state_of(inventory.machines) if folder.exists() else "unfinished"
        about = {"state": state, "shape": inventory.shape, "billed": inventory.provider in CLOUDS}
        return known | about | {"problem": None}
    name, inventory_here = _known_here(folder)
    known = {
        "cluster": folder.name,
        "provider": name,
        "region": None,
        "machines": None,
        "hourly_usd": None,
        "created_at": None,
        "age_s": None,
        "expires_at": _ending_here(folder, name),
        "cost_usd": None,
        "runs": [run.id for run in runs],
        "unheard": {run.id: run.unheard for run in runs if run.unheard},
    }
    if inventory_here is not None:
        unknown = [machine.public() | {"state": "unknown"} for machine in inventory_here.machines]
        age_s = (now - datetime.fromisoformat(inventory_here.created_at)).total_seconds()
        known |= {
            "region": inventory_here.region,
            "machines": unknown,
            "hourly_usd": inventory_here.hourly_usd,
            "created_at": inventory_here.created_at,
            "age_s": round(age_s),
        }
    return known | {
        "state": "unknown",
        "shape": inventory_here.shape if inventory_here else None,
        "billed": None if name is None else name in CLOUDS,
        "problem": seen.problem,
    }


def state_of(machines: Sequence[Machine]) -> ClusterState:
    """The state that all machines are in, or `partial`; `gone` where there is none."""
    states = {machine.state for machine in machines}
    if not states:
        return "gone"
    return states.pop() if len(states) == 1 else "partial"


def _known_here(folder: ClusterFolder) -> tuple[str | None, Inventory | None]:
    """What the files here tell of a cluster whose provider could not be asked: its provider, its inventory."""
    try:
        name = provider_name(folder)
    except InventoryError:
        name = None
    try:
        return name, folder.load() if folder.exists() else None
    except InventoryError:
        return name, None


def _ending_here(folder: ClusterFolder, provider: str | None) -> str | None:
    """When its machines end by themselves, as the files here tell. None: they don't, or that is not known."""
    try:
        return None if provider is None else ending_of(folder, provider)
    except InventoryError:
        return None


def runs_by_cluster(app: App, cluster: str | None) -> dict[str, list[OpenRun]]:
    """The runs of a cluster, or of all, that are not over. Their nodes are asked."""
    found: dict[str, list[OpenRun]] = {}
    for run in open_runs(app, cluster):
        found.setdefault(run.folder.load_run().cluster, []).append(run)
    return found


def _order(document: dict[str, Any]) -> tuple[bool, float, str]:
    """What costs most comes first; what is billed at an unknown price before all."""
    billed = document["billed"] is not False
    hourly_usd = document["hourly_usd"]
    return (
        not billed,
        -(float("inf") if hourly_usd is None else hourly_usd) if billed else 0,
        document["cluster"],
    )


def totals(documents: Sequence[dict[str, Any]]) -> str:
    """`3 clusters, 6 machines, $24.30 an hour, $55.20 so far`, of what is known and not gone."""
    from gpuctl.text import dollars

    parts = [
        plural(len(documents), "cluster"),
        plural(sum(m["state"] != "gone" for one in documents for m in one["machines"] or ()), "machine"),
    ]
    billed = [document for document in documents if document["billed"]]
    hourly = [document["hourly_usd"] for document in billed]
    cost = [document["cost_usd"] for document in billed]
    for values, what in ((hourly, "an hour"), (cost, "so far")):
        known = [value for value in values if value is not None]
        if known:
            least = "at least " if len(known) < len(values) else ""
            parts.append(f"{least}{dollars(sum(known))} {what}")
    return ", ".join(parts)
