"""What a plan for rented machines shows of them: their price, their resources, when they end. Pure."""

from collections.abc import Sequence
from datetime import datetime

from provision.catalog import SHAPES
from provision.cloud import CloudCluster, NewMachine, Offer, PlannedResource, ResourceAction
from provision.costs import PlanPrice, address_hourly_usd, disk_hourly_usd
from provision.provider import PlannedMachine


def price_of(
    cluster: CloudCluster,
    offer: Offer,
    count: int,
    each_usd: float | None,
    *,
    most_usd: float | None = None,
    disk_usd_per_gb_month: float | None = None,
) -> PlanPrice:
    """What `count` machines of `each_usd` an hour cost in all. `most_usd`: what each can cost at most."""
    target = cluster.target
    gb = offer.disk_gb + int(offer.facts.get("other_disks_gb") or 0)
    disk_usd = disk_hourly_usd(target.provider, target.region, gb, usd_per_gb_month=disk_usd_per_gb_month)
    address_usd = address_hourly_usd(target.provider) if cluster.public_ip else 0.0
    return PlanPrice(
        machines_usd=_times(count, each_usd),
        disks_usd=_times(count, disk_usd),
        addresses_usd=_times(count, address_usd),
        network_usd=offer.network_hourly_usd,
        most_machines_usd=_times(count, most_usd),
    )


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


def what_it_is(offer: Offer, *, spot: bool) -> str:
    """`VM.GPU.A10.2, 2 x A10 24 GB, spot`."""
    shape = SHAPES.get(offer.shape)
    words = [offer.shape]
    if shape is not None and shape.gpus:
        words.append(f"{shape.gpus} x {shape.gpu} {shape.gpu_memory_gb} GB")
    elif offer.gpus:
        words.append(f"{offer.gpus} GPU{'s' * (offer.gpus > 1)}")
    return ", ".join(words + ["spot"] * spot)


def until_s(cluster: CloudCluster, now: datetime, *, lives: bool) -> float | None:
    """In how long the machines end by themselves. None: nothing ends them."""
    if cluster.expires_at is None:
        return None
    if not lives and cluster.ttl_s is not None:
        return cluster.ttl_s
    return max(0.0, round((datetime.fromisoformat(cluster.expires_at) - now).total_seconds()))


def new_machines(create: Sequence[PlannedMachine]) -> tuple[NewMachine, ...]:
    """The machines as a preview takes them, without their user-data."""
    return tuple(NewMachine(name=machine.name, rank=machine.rank, user_data="") for machine in create)


def _times(count: int, usd: float | None) -> float | None:
    return None if usd is None else round(count * usd, 6)
