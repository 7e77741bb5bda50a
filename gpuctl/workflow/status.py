"""`status`: what the provider says of a cluster's machines."""

from datetime import UTC, datetime
from typing import Any

from gpuctl.options import App
from gpuctl.workflow.collect import unfinished
from gpuctl.workflow.connect import load_inventory
from gpuctl.workflow.up import describe
from inventories.errors import InventoryError
from inventories.store import ClusterFolder
from provision import limits


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
    """The document of `status --json`: `up --json`'s, with age, cost so far and unfinished runs."""
    from dataclasses import replace

    from provision.providers import load
    from remote.fanout import fan_out, values

    inventory = load_inventory(folder)
    provider = load(inventory.provider, folder)
    if provider.billed:
        # One question for all of them, however many there are.
        states = {machine.id: machine.state for machine in provider.find()}
        machines = [replace(m, state=states.get(m.id, "gone")) for m in inventory.machines]
    else:
        machines = [*values(fan_out(provider.refresh, {m.name: m for m in inventory.machines})).values()]
    inventory = replace(inventory, machines=tuple(machines))
    now = datetime.now(UTC)
    age_s = (now - datetime.fromisoformat(inventory.created_at)).total_seconds()
    return describe(inventory) | {
        "created_at": inventory.created_at,
        "age_s": round(age_s),
        "cost_usd": cost_so_far(folder, now),
        "runs": [run.id for run in unfinished(app.store, folder.name)],
    }
