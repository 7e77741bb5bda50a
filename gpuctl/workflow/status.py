"""`status`: what the provider says of a cluster's machines."""

from datetime import UTC, datetime
from typing import Any

from gpuctl.options import App
from gpuctl.workflow.collect import unfinished
from gpuctl.workflow.connect import load_inventory
from gpuctl.workflow.up import describe
from inventories.store import ClusterFolder


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
    age_s = (datetime.now(UTC) - datetime.fromisoformat(inventory.created_at)).total_seconds()
    cost = None if inventory.hourly_usd is None else round(inventory.hourly_usd * age_s / 3600, 2)
    return describe(inventory) | {
        "created_at": inventory.created_at,
        "age_s": round(age_s),
        "cost_usd": cost,
        "runs": [run.id for run in unfinished(app.store, folder.name)],
    }
