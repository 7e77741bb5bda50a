"""`status`: what the provider says of a cluster's machines."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpuctl.options import App
from gpuctl.workflow.collect import unfinished
from gpuctl.workflow.connect import load_inventory
from gpuctl.workflow.up import describe, provider_name
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from inventories.store import ClusterFolder
from provision import limits
from provision.cloud_folder import CloudFolder
from provision.clouds import CLOUDS
from provision.providers import load
from remote.fanout import fan_out, values

UNFINISHED = "`gpuctl up` as before goes on with it, `gpuctl down` removes what there is"


def cost_so_far(folder: ClusterFolder, now: datetime) -> float | None:
    """What the cluster's machines have cost since it was made, USD, by list price. None: not known."""
    try:
        inventory = folder.load()
    except InventoryError:
        return None
    if inventory.hourly_usd is None:
        return None
    return round(limits.cost_so_far(inventory.hourly_usd, inventory.created_at, now) or 0.0, 2)


def status_of(app: App, folder: ClusterFolder) -> dict[str, Any]:
    """The document of `status --json`: `up --json`'s, with age, cost so far and unfinished runs.

    Machines that the provider knows and the inventory does not are shown, too: an `up` that was killed
    made them.
    """
    inventory = _unfinished_up(app, folder) or load_inventory(folder)
    provider = load(inventory.provider, folder)
    if provider.billed:
        # One question for all of them, however many there are.
        machines = with_found(inventory.machines, provider.find())
        if len(machines) > len(inventory.machines):
            app.output.say(f"the last `up` of {folder.name} did not finish: {UNFINISHED}")
    else:
        found = values(fan_out(provider.refresh, {m.name: m for m in inventory.machines}))
        machines = tuple(found.values())
    inventory = replace(inventory, machines=machines)
    now = datetime.now(UTC)
    age_s = (now - datetime.fromisoformat(inventory.created_at)).total_seconds()
    return describe(inventory) | {
        "created_at": inventory.created_at,
        "age_s": round(age_s),
        "cost_usd": cost_so_far(folder, now),
        "runs": [run.id for run in unfinished(app.store, folder.name)],
    }


def with_found(known: Sequence[Machine], found: Sequence[Machine]) -> tuple[Machine, ...]:
    """The known machines with their state now, and those that were found besides, by rank."""
    now = {machine.id: machine for machine in found}
    states = [replace(m, state=now[m.id].state if m.id in now else "gone") for m in known]
    ids = {machine.id for machine in known}
    more = [machine for machine in found if machine.id not in ids]
    return tuple(sorted((*states, *more), key=lambda machine: machine.rank))


def _unfinished_up(app: App, folder: ClusterFolder) -> Inventory | None:
    """The cluster of a first `up` that was killed, which is not in any inventory yet."""
    name = None if folder.exists() else provider_name(folder)
    if name is None:
        return None
    record = CloudFolder(folder).load() if name in CLOUDS else None
    journal = folder.journal.read()
    if record is None:
        app.output.say(f"the first `up` of {folder.name} did not finish: {UNFINISHED}")
    return Inventory(
        cluster=folder.name,
        provider=name,
        region=record.target.region if record else None,
        shape=record.shape if record else None,
        created_at=record.created_at if record else str(journal[0]["at"]),
        machines=() if record else load(name, folder).find(),
    )
