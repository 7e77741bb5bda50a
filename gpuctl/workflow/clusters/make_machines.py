"""The machines of an `up`: made by its plan, in the inventory, and parted with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.workflow.clusters import up_plan
from gpuctl.workflow.clusters.cost import record_price
from gpuctl.workflow.machines.daemons import end_daemons
from gpuctl.workflow.machines.host_firewalls import update_firewalls
from gpuctl.workflow.machines.inventory_files import HostKeys, pin_all, pin_host_keys, save_inventory
from gpuctl.workflow.machines.setup_state import SETUP, Setup, setup_steps
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine
from provision.provider import Plan, Provider

if TYPE_CHECKING:
    from gpuctl.workflow.runs.unfinished_runs import ClusterRuns


@dataclass(frozen=True, kw_only=True)
class Made:
    """The machines of a plan, before they are reached."""

    machines: tuple[Machine, ...]
    """As the provider made or listed them."""
    inventory: Inventory
    """With their pinned host keys."""
    ours: bool
    """Whether the inventory is saved: the provider itself knows the machines, so they are ours to end."""


def make(
    app: App,
    folder: ClusterFolder,
    provider: Provider,
    plan: Plan,
    *,
    before: Inventory | None,
    host_keys: HostKeys,
    setup: Setup,
    for_run: bool,
) -> Made:
    """Carry out the plan. Machines made by it are in the inventory at once; others only when they are reached."""
    folder.journal.append("up", provider=plan.provider, create=[machine.name for machine in plan.create])
    if setup.steps != setup_steps(folder):
        folder.journal.append(SETUP, steps=setup.steps)
    if plan.changes:
        price = "" if plan.free else f" ({up_plan.run_price(plan) if for_run else up_plan.price(plan)})"
        app.output.say(f"{up_plan.progress_text(plan)} with {plan.provider}{price} …")
    machines = provider.create(plan, folder.journal, app.output.say)
    ours = plan.changes or (before is None and bool(provider.find()))  # also where the inventory was lost
    known = {machine.id: machine.gpus for machine in (before.machines if before else ())}
    inventory = Inventory(
        cluster=folder.name,
        provider=plan.provider,
        region=plan.region,
        shape=plan.spec.shape or (before.shape if before else None),
        hourly_usd=plan.hourly_usd,
        created_at=before.created_at if before else datetime.now(UTC).isoformat(timespec="seconds"),
        machines=tuple(
            machine if machine.gpus is not None else replace(machine, gpus=known.get(machine.id))
            for machine in pin_all(machines, before, host_keys)
        ),
    )
    if ours:
        save_inventory(folder, inventory)
        record_price(app, folder, inventory, plan.price)
    else:
        pin_host_keys(folder, inventory.machines)
    return Made(machines=machines, inventory=inventory, ours=ours)


def keep(
    app: App,
    folder: ClusterFolder,
    before: Inventory | None,
    inventory: Inventory,
    runs: "ClusterRuns",
    *,
    ended: bool,
) -> Inventory:
    """Save what has changed; before that, part with the machines that leave. `ended`: these are no more."""
    if inventory != before:
        if before is not None:
            if not ended:
                stay = {(machine.host, machine.port) for machine in inventory.machines}
                leave = {m.name: m for m in before.machines if (m.host, m.port) not in stay}
                _note_runs_that_leave(app, runs, before, leave)
                for daemon in end_daemons(folder, [*leave.values()]):
                    if daemon.problem is not None:
                        app.output.say(f"note: {daemon.node}: {daemon.problem}")
            update_firewalls(app, folder, before, inventory, ended=ended)
        save_inventory(folder, inventory)
    return inventory


def _note_runs_that_leave(
    app: App, runs: "ClusterRuns", before: Inventory, leave: Mapping[str, Machine]
) -> None:
    """Note the runs that may be active on machines that leave the cluster, but stay with their owner."""
    if before.provider != "hosts" or not leave:
        return
    for run in runs.unfinished:
        for part in run.folder.load_run().nodes:
            if machine := leave.get(part.name):
                app.output.say(
                    f"note: run {run.id} may be at work on {part.name} ({machine.host}:{machine.port}), which leaves "
                    "the cluster: gpuctl can't end it any more, but with the former file."
                )
