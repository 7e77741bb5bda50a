"""What a plan for rented machines shows of them: their price, their resources, when they end. Asks nobody."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TypedDict

from inventories.text import plural
from provision.clouds import describe, price_region
from provision.pricing.catalog import SHAPES
from provision.pricing.plan_price import HOURS_A_MONTH, PlanPrice
from provision.provider import PlannedMachine
from provision.records import (
    CloudCluster,
    Instance,
    NewMachine,
    Offer,
    PlannedEnd,
    PlannedRequest,
    PlannedResource,
    Preview,
    ResourceAction,
)
from provision.rented.ends import ends_bill


def price_of(
    cluster: CloudCluster,
    offer: Offer,
    count: int,
    each_usd: float | None,
    *,
    varies: bool = False,
    most_usd: float | None = None,
    disk_usd_per_gb_month: float | None = None,
) -> PlanPrice:
    """What `count` machines of `each_usd` an hour cost in all.

    `varies`: that changes while they run; `most_usd` is then what each can cost at most.
    """
    target = cluster.target
    gb = offer.disk_gb + int(offer.facts.get("other_disks_gb") or 0)
    disk_usd = disk_hourly_usd(target.provider, target.region, gb, usd_per_gb_month=disk_usd_per_gb_month)
    address_usd = describe(target.provider).address_hourly_usd if cluster.public_ip else 0.0
    return PlanPrice(
        machines_usd=_times(count, each_usd),
        disks_usd=_times(count, disk_usd),
        addresses_usd=_times(count, address_usd),
        network_usd=offer.network_hourly_usd,
        varies=varies,
        most_machines_usd=_times(count, most_usd),
    )


def disk_hourly_usd(
    provider: str, region: str | None, gb: int, *, usd_per_gb_month: float | None = None
) -> float | None:
    """What a boot volume of that size costs, USD an hour. `usd_per_gb_month`: a price that was asked for since.

    None: not known in that region.
    """
    if usd_per_gb_month is None:
        cloud = describe(provider)
        if price_region(provider, region) != cloud.price_region:
            return None
        usd_per_gb_month = cloud.disk_usd_per_gb_month
    return gb * usd_per_gb_month / HOURS_A_MONTH


def resources(
    cluster: CloudCluster,
    offer: Offer,
    price: PlanPrice,
    *,
    create: Sequence[PlannedMachine],
    keep: Sequence[str],
    end: Sequence[str],
) -> tuple[PlannedResource, ...]:
    """The machines with their disks and addresses. `keep` and `end` have the ids of those that are there."""
    found: list[PlannedResource] = []
    count = len(create) + len(keep)

    def share(whole_usd: float | None, part: int) -> float | None:
        return None if whole_usd is None else whole_usd * part / count

    groups: tuple[tuple[ResourceAction, int, str], ...] = (
        ("create", len(create), create[0].name if len(create) == 1 else ""),
        ("use", len(keep), keep[0] if len(keep) == 1 else ""),
    )
    for action, number, name in groups:
        if not number:
            continue
        detail = what_it_is(offer, spot=cluster.spot)
        replaced = [machine.replaces for machine in create if machine.replaces and action == "create"]
        if replaced:
            detail += f", for {', '.join(replaced)}"
        rows = (
            ("instance", name, detail, price.machines_usd),
            ("boot-volume", "", f"{offer.disk_gb} GB{' each' if number > 1 else ''}", price.disks_usd),
            ("public-address", "", "IPv4", price.addresses_usd),
        )
        found += [
            PlannedResource(
                action=action,
                kind=kind,
                name=name,
                count=number,
                detail=detail,
                hourly_usd=share(usd, number),
            )
            for kind, name, detail, usd in rows
            if kind != "public-address" or cluster.public_ip
        ]
    if end:
        found.append(PlannedResource(action="end", kind="instance", count=len(end), detail=", ".join(end)))
    return tuple(found)


def network(preview: Preview, offer: Offer, *, changes: bool) -> tuple[PlannedResource, ...]:
    """What there is beside machines; where nothing `changes`, what is used, and what is billed of it."""
    if changes:
        return preview.resources
    used = tuple(resource for resource in preview.resources if resource.action == "use")
    if not offer.network_hourly_usd or any(resource.kind == "nat-gateway" for resource in used):
        return used
    detail = "shared by all private clusters of the region, with its address"
    usd = offer.network_hourly_usd
    return (*used, PlannedResource(action="use", kind="nat-gateway", detail=detail, hourly_usd=usd))


def what_it_is(offer: Offer, *, spot: bool) -> str:
    """`VM.GPU.A10.2, 2 x A10 24 GB, spot`."""
    shape = SHAPES.get(offer.shape)
    words = [offer.shape]
    if shape is not None and shape.gpus:
        words.append(f"{shape.gpus} x {shape.gpu} {shape.gpu_memory_gb} GB")
    elif offer.gpus:
        words.append(plural(offer.gpus, "GPU"))
    return ", ".join(words + ["spot"] * spot)


def ending_requests(provider: str, ids: Sequence[str]) -> tuple[PlannedRequest, ...]:
    """The requests that end these machines, with their boot volumes."""
    return describe(provider).ending_requests(ids) if ids else ()


class Conditions(TypedDict):
    """Fields of `Plan`."""

    ssh_cidrs: tuple[str, ...]
    ssh_port: int
    until_s: float | None
    ending: str
    ends: tuple[PlannedEnd, ...]
    ttl_ends_bill: bool
    least_billed_s: float


def conditions(cluster: CloudCluster, offer: Offer, *, lives: bool) -> Conditions:
    """Who may reach SSH, and when the machines end. `lives`: some of them are there already."""
    cloud = describe(cluster.target.provider)
    return Conditions(
        ssh_cidrs=cluster.ssh_cidrs,
        ssh_port=cluster.ssh_port,
        until_s=_until_s(cluster, datetime.now(UTC), lives=lives),
        ending=cloud.ending_clause(cluster, offer) if cluster.expires_at else "",
        ends=cloud.end_guards(cluster),
        ttl_ends_bill=ends_bill(cluster),
        least_billed_s=cloud.least_billed_s(cluster.shape),
    )


def _until_s(cluster: CloudCluster, now: datetime, *, lives: bool) -> float | None:
    if cluster.expires_at is None:
        return None
    if not lives and cluster.ttl_s is not None:
        return cluster.ttl_s
    return max(0.0, round((datetime.fromisoformat(cluster.expires_at) - now).total_seconds()))


def way_in(cluster: CloudCluster) -> tuple[str, ...]:
    """A note where nothing that is known here leads to the machines."""
    if cluster.public_ip or cluster.bastion:
        return ()
    return ("the machines will have no public address: without --bastion, a VPN has to lead there",)


def to_create(
    cluster: CloudCluster, machines: Sequence[Instance], ranks: Iterable[int]
) -> tuple[PlannedMachine, ...]:
    """The machines of these ranks, for those of `machines` that had them and are dead."""
    dead = {machine.rank: machine.id for machine in reversed(machines)}
    return tuple(
        PlannedMachine(name=f"{cluster.name}-{rank}", rank=rank, shape=cluster.shape, replaces=dead.get(rank))
        for rank in sorted(ranks)
    )


def new_machines(create: Sequence[PlannedMachine]) -> tuple[NewMachine, ...]:
    """The machines as a preview takes them, without their user-data."""
    return tuple(NewMachine(name=machine.name, rank=machine.rank, user_data="") for machine in create)


def _times(count: int, usd: float | None) -> float | None:
    return None if usd is None else round(count * usd, 6)
