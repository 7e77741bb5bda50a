"""`status`: the state of a cluster's machines, as the provider describes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.command_results.clusters import ClusterStatus, IdleStatus
from gpuctl.workflow.clusters.bill import (
    cost_of,
    ending_of,
    hourly_of,
    price_of_all,
    stopped_without_bill,
)
from gpuctl.workflow.clusters.choose_provider import provider_name
from gpuctl.workflow.clusters.ends import ends_of
from gpuctl.workflow.clusters.limits import start_cut_off
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.idle import idle_state
from gpuctl.workflow.machines.notify import undelivered
from gpuctl.workflow.machines.setup_state import unprepared_note
from gpuctl.workflow.runs.queued_runs import mirrored, take_in_started
from gpuctl.workflow.runs.unfinished_runs import OpenRun, open_runs
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine, MachineState
from provision.clouds import RENTED
from provision.errors import API_UNAVAILABLE, ProvisionError
from provision.records import EndGuard
from provision.registry import load
from provision.rented.state import CloudState
from remote.fanout import fan_out, values

UNFINISHED = "`gpuctl up` as before continues with it, `gpuctl down` removes what there is"


def status_of(app: App, folder: ClusterFolder) -> ClusterStatus:
    """Return the cluster's state from its provider, with age, cost so far and unfinished runs."""
    inventory = inventory_now(folder, app.output.say)
    if left := start_cut_off(folder):
        app.output.say(left)
    if stopped := stopped_without_bill(inventory):
        names = ", ".join(machine.name for machine in stopped)
        app.output.say(
            f"{names}: stopped, so the disk alone is billed, until `gpuctl down --cluster {folder.name}` removes it"
        )
    guards = guards_of(folder, inventory, app.output.say)
    idle, guards = idle_state(folder, inventory.provider, inventory.machines, guards)
    notices = undelivered(folder, inventory.machines, app.output.say)
    if (
        inventory.provider == "hosts" and inventory.machines[0].state == "running"
    ):  # other computers may share them
        take_in_started(app, folder.name, always=True)
    status = describe(folder, inventory, open_runs(app, folder.name), datetime.now(UTC), guards, idle)
    return replace(status, notices=notices, queue=mirrored(folder).status())


def guards_of(
    folder: ClusterFolder, inventory: Inventory, say: Callable[[str], None]
) -> tuple[EndGuard, ...] | None:
    """Return the mechanisms that end the machines. `None`: the cloud did not answer; `say` gets the reason."""
    try:
        return ends_of(folder, load(inventory.provider, folder), inventory.machines)
    except ProvisionError as error:
        say(f"the end of the machines' time could not be looked at: {error}")
        return None


def inventory_now(folder: ClusterFolder, say: Callable[[str], None]) -> Inventory:
    """Return the inventory with the machines as the provider describes them now.

    Machines that only the provider knows are included: an `up` that was killed made them.
    """
    from provision.rented.provider import CloudProvider

    inventory = _unfinished_up(folder, say) or load_inventory(folder, empty=True)
    provider = load(inventory.provider, folder)
    if isinstance(provider, CloudProvider):
        # A single request for all machines.
        machines = with_found(inventory.machines, provider.find(), provider.states())
        if strays := provider.strays():
            say(
                f"{', '.join(strays)}: billed, and of no use: an instance pool made it in place of a lost machine. "
                "`gpuctl up` or `gpuctl down` ends it"
            )
        if len(machines) > len(inventory.machines):
            say(f"the last `up` of {folder.name} did not finish: {UNFINISHED}")
    else:
        outcomes = fan_out(provider.refresh, {machine.name: machine for machine in inventory.machines})
        silent = {
            outcome.node: str(outcome.error)
            for outcome in outcomes
            if isinstance(outcome.error, API_UNAVAILABLE)
        }
        for why in dict.fromkeys(silent.values()):
            say(why)
        refreshed = values([outcome for outcome in outcomes if outcome.node not in silent])
        machines = tuple(
            refreshed.get(machine.name) or replace(machine, state="unknown") for machine in inventory.machines
        )
    if len(machines) == len(inventory.machines) and (advice := unprepared_note(folder, machines)):
        say(advice)
    return replace(inventory, machines=machines, hourly_usd=price_of_all(folder, inventory, len(machines)))


def describe(
    folder: ClusterFolder,
    inventory: Inventory,
    runs: Sequence[OpenRun],
    now: datetime,
    guards: tuple[EndGuard, ...] | None,
    idle: IdleStatus | None = None,
) -> ClusterStatus:
    """Return a cluster as `status --json` shows it; `runs` are its unfinished ones."""
    age_s = (now - datetime.fromisoformat(inventory.created_at)).total_seconds()
    expires_at = ending_of(folder, inventory.provider, guards)
    return ClusterStatus(
        cluster=inventory.cluster,
        provider=inventory.provider,
        region=inventory.region,
        machines=tuple(machine.public() for machine in inventory.machines),
        hourly_usd=hourly_of(inventory),
        created_at=inventory.created_at,
        age_s=round(age_s),
        expires_at=expires_at,
        ends=guards,
        idle=idle,
        cost_usd=cost_of(inventory, expires_at, now),
        runs=tuple(run.id for run in runs),
        unheard={run.id: run.silent for run in runs if run.silent},
    )


def with_found(
    known: Sequence[Machine], listed: Sequence[Machine], states: Mapping[str, MachineState]
) -> tuple[Machine, ...]:
    """Return the known machines with their current state, and the newly listed ones, by rank.

    `states` are of all machines that the cloud lists, by id. A machine that it does not list is not known to be
    deleted: lists lag behind, and omit machines that ended long ago.
    """
    now = {machine.id: machine for machine in listed}
    current = [
        replace(
            machine,
            state=states.get(machine.id, "unknown"),
            launched_at=now[machine.id].launched_at if machine.id in now else machine.launched_at,
        )
        for machine in known
    ]
    ids = {machine.id for machine in known}
    more = [machine for machine in listed if machine.id not in ids]
    return tuple(sorted((*current, *more), key=lambda machine: machine.rank))


def _unfinished_up(folder: ClusterFolder, say: Callable[[str], None]) -> Inventory | None:
    """Return the cluster of a first `up` that was killed, and so is in no inventory yet."""
    name = None if folder.exists() else provider_name(folder)
    if name is None:
        return None
    record = CloudState(folder).load() if name in RENTED else None
    journal = folder.journal.read()
    if record is None:
        say(f"the first `up` of {folder.name} did not finish: {UNFINISHED}")
    return Inventory(
        cluster=folder.name,
        provider=name,
        region=record.target.region if record else None,
        shape=record.shape if record else None,
        created_at=record.created_at if record else str(journal[0]["at"]),
        machines=() if record else load(name, folder).find(),
    )
