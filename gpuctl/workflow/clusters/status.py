"""`status`: the state of a cluster's machines, as the provider describes it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.command_results import ClusterStatus, IdleStatus
from gpuctl.workflow.clusters.choose_provider import provider_name
from gpuctl.workflow.clusters.ends import ends_of, is_relied_on
from gpuctl.workflow.clusters.limits import start_cut_off
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.idle import idle_state
from gpuctl.workflow.machines.notify import undelivered
from gpuctl.workflow.machines.setup_state import unprepared_note
from gpuctl.workflow.runs.unfinished_runs import OpenRun, open_runs
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine, MachineState
from provision.clouds import RENTED
from provision.clouds import describe as describe_cloud
from provision.errors import API_UNAVAILABLE, ProvisionError
from provision.pricing import spending
from provision.pricing.prices import price_of
from provision.provider import Provider
from provision.records import EndGuard
from provision.registry import load
from provision.rented import ends
from provision.rented.state import CloudState
from remote.fanout import fan_out, values

UNFINISHED = "`gpuctl up` as before continues with it, `gpuctl down` removes what there is"


def cost_so_far(
    folder: ClusterFolder, now: datetime, alive: Collection[Machine] | None = None
) -> float | None:
    """Return the cost of the cluster's machines since each was made, USD, by list price. `None`: not known.

    `alive`: the machines that have not ended, if known.
    """
    try:
        inventory = folder.load()
        if alive is None:
            return cost_of(inventory, None, now)
        ids = {machine.id for machine in alive}
        marked = [m if m.id in ids else replace(m, state="gone") for m in inventory.machines]
        return cost_of(replace(inventory, machines=tuple(marked)), ending_of(folder, inventory.provider), now)
    except InventoryError:
        return None


def cost_of(inventory: Inventory, expires_at: str | None, now: datetime) -> float | None:
    """Return the cost of the machines, USD; deleted ones cost at most until `expires_at`. `None`: not known."""
    each_usd = None
    if inventory.hourly_usd is not None and inventory.machines:
        each_usd = inventory.hourly_usd / len(inventory.machines)
    ended = now if expires_at is None else min(now, datetime.fromisoformat(expires_at))
    rented = inventory.provider in RENTED and inventory.shape is not None
    least_s = describe_cloud(inventory.provider).least_billed_s(inventory.shape or "") if rented else 0.0
    costs = [
        spending.cost_so_far(
            each_usd,
            [machine.launched_at or inventory.created_at],
            ended if machine.state == "gone" else now,
            least_s,
        )
        for machine in inventory.machines
    ]
    known = [cost for cost in costs if cost is not None]
    return round(sum(known), 4) if known and len(known) == len(costs) else None


def hourly_of(inventory: Inventory) -> float | None:
    """Return the hourly price, USD, without machines that are gone or stopped without a bill. `None`: not known."""
    billed = sum(machine.state != "gone" for machine in inventory.machines) - len(
        stopped_without_bill(inventory)
    )
    if not inventory.hourly_usd or billed == len(inventory.machines):
        return inventory.hourly_usd
    return round(inventory.hourly_usd * billed / len(inventory.machines), 6)


def stopped_without_bill(inventory: Inventory) -> tuple[Machine, ...]:
    """Return the machines that are stopped, and of which the cloud bills the disk alone."""
    if inventory.provider not in RENTED:
        return ()
    bills = describe_cloud(inventory.provider).bills_stopped
    return tuple(
        m for m in inventory.machines if m.state == "stopped" and not bills(m.shape or inventory.shape or "")
    )


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
    status = describe(folder, inventory, open_runs(app, folder.name), datetime.now(UTC), guards, idle)
    return replace(status, notices=notices)


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
        machines = _refreshed(provider, inventory.machines, say)
    if len(machines) == len(inventory.machines) and (advice := unprepared_note(folder, machines)):
        say(advice)
    return replace(inventory, machines=machines, hourly_usd=_price_of_all(folder, inventory, len(machines)))


def _refreshed(
    provider: Provider, machines: Sequence[Machine], say: Callable[[str], None]
) -> tuple[Machine, ...]:
    """Return each machine as the provider describes it; unknown if its API does not answer, which is reported."""
    outcomes = fan_out(provider.refresh, {machine.name: machine for machine in machines})
    silent = {
        outcome.node: str(outcome.error) for outcome in outcomes if isinstance(outcome.error, API_UNAVAILABLE)
    }
    for why in dict.fromkeys(silent.values()):
        say(why)
    refreshed = values([outcome for outcome in outcomes if outcome.node not in silent])
    return tuple(refreshed.get(machine.name) or replace(machine, state="unknown") for machine in machines)


def _price_of_all(folder: ClusterFolder, inventory: Inventory, count: int) -> float | None:
    """Return the hourly price of `count` machines: machines that the inventory lacks are billed, too."""
    known = len(inventory.machines)
    if count == known:
        return inventory.hourly_usd
    if known:
        return None if inventory.hourly_usd is None else inventory.hourly_usd / known * count
    each_usd = _list_price(folder, inventory)
    return None if each_usd is None else each_usd * count


def _list_price(folder: ClusterFolder, inventory: Inventory) -> float | None:
    """Return the on-demand price of a machine, USD an hour. `None`: not known, or a spot machine."""
    record = CloudState(folder).load() if inventory.provider in RENTED else None
    if record is None or record.spot:
        return None
    try:
        price = price_of(CloudState(folder).home, record.shape, record.target.region)
    except InventoryError:
        return None  # a torn file of prices hides no machine
    return price.usd_per_hour if price else None


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


def ending_of(folder: ClusterFolder, provider: str, guards: Sequence[EndGuard] | None = None) -> str | None:
    """Return the time at which the bill of the machines ends, ISO 8601, UTC.

    `None`: nothing ends it, or not for sure. `guards`: the mechanisms as the cloud describes them. Empty or
    `None`: nobody asked, so it is the planned time.
    """
    record = CloudState(folder).load() if provider in RENTED else None
    if record is None:
        return None
    timed = [guard for guard in guards or () if guard.guard != ends.IDLE]
    ended = any(map(is_relied_on, timed)) if timed else ends.ends_bill(record)
    return record.expires_at if ended else None
