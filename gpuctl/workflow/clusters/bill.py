"""The bill of a cluster: its price an hour, its cost so far, and the time at which it ends."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from gpuctl.workflow.clusters.ends import is_relied_on
from gpuctl.workflow.machines.cloud_record import cloud_record
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Inventory, Machine
from provision.clouds import RENTED
from provision.clouds import describe as describe_cloud
from provision.pricing import spending
from provision.pricing.prices import price_of
from provision.records import EndGuard
from provision.rented import ends
from provision.rented.state import CloudState


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


def price_of_all(folder: ClusterFolder, inventory: Inventory, count: int) -> float | None:
    """Return the hourly price of `count` machines: machines that the inventory lacks are billed, too."""
    known = len(inventory.machines)
    if count == known:
        return inventory.hourly_usd
    if known:
        return None if inventory.hourly_usd is None else inventory.hourly_usd / known * count
    record = cloud_record(folder, inventory.provider)
    if record is None or record.spot:
        return None
    try:
        price = price_of(CloudState(folder).home, record.shape, record.target.region)
    except InventoryError:
        return None  # a torn file of prices hides no machine
    return price.usd_per_hour * count if price else None


def ending_of(folder: ClusterFolder, provider: str, guards: Sequence[EndGuard] | None = None) -> str | None:
    """Return the time at which the bill of the machines ends, ISO 8601, UTC.

    `None`: nothing ends it, or not for sure. `guards`: the mechanisms as the cloud describes them. Empty or
    `None`: nobody asked, so it is the planned time.
    """
    record = cloud_record(folder, provider)
    if record is None:
        return None
    timed = [guard for guard in guards or () if guard.guard != ends.IDLE]
    ended = any(map(is_relied_on, timed)) if timed else ends.ends_bill(record)
    return record.expires_at if ended else None
