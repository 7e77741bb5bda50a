"""The contents of a plan for rented machines: price, resources, end of the time. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from inventories.machine import Machine
from inventories.specs.spec import Spec
from inventories.text import plural
from provision.clouds import describe, price_region
from provision.pricing.catalog import SHAPES
from provision.pricing.plan_price import HOURS_A_MONTH, PlanPrice
from provision.provider import Plan, PlannedMachine
from provision.records import (
    CloudCluster,
    Instance,
    NewMachine,
    Offer,
    PlannedRequest,
    PlannedResource,
    Preview,
    ResourceAction,
)
from provision.rented.ends import ends_bill, idle_clause, planned_ends


def base_plan(
    spec: Spec,
    provider: str,
    cluster: CloudCluster,
    offer: Offer,
    price: PlanPrice,
    *,
    machines_price: PlanPrice | None = None,
    create: tuple[PlannedMachine, ...],
    keep: tuple[Machine, ...] = (),
    end: tuple[str, ...] = (),
    requests: tuple[PlannedRequest, ...],
    more_rows: tuple[PlannedResource, ...],
    notes: tuple[str, ...],
    lives: bool = False,
) -> Plan:
    """Return a plan with the fields that all plans for rented machines have.

    `machines_price`: of the machines with GPUs, if `price` has others. `more_rows`: rows of other resources. `lives`:
    some machines exist already.
    """
    cloud = describe(cluster.target.provider)
    rows = resources(
        cluster, offer, machines_price or price, create=create, keep=[machine.id for machine in keep], end=end
    )
    return Plan(
        spec=spec,
        provider=provider,
        region=cluster.target.region,
        account=cluster.target.account,
        create=create,
        keep=keep,
        end=end,
        price=price,
        free=False,
        requests=requests,
        resources=(*rows, *more_rows),
        ssh_cidrs=cluster.ssh_cidrs,
        ssh_port=cluster.ssh_port,
        until_s=until_s(cluster, lives=lives),
        ending=cloud.ending_clause(cluster, offer) if cluster.expires_at else "",
        ends=planned_ends(cluster),
        idle=idle_clause(cluster),
        ttl_ends_bill=ends_bill(cluster),
        least_billed_s=cloud.least_billed_s(cluster.shape),
        notes=notes,
        image=offer.image_name,
        image_why=offer.image_why,
        driver=offer.driver,
        terms=offer.terms,
    )


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
    """Return the price of `count` machines of `each_usd` an hour, with disks, addresses and network.

    `varies`: the price changes while they run; `most_usd` is then the highest price of each.
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


def _times(count: int, usd: float | None) -> float | None:
    return None if usd is None else round(count * usd, 6)


def disk_hourly_usd(
    provider: str, region: str | None, gb: int, *, usd_per_gb_month: float | None = None
) -> float | None:
    """Return the price of a boot volume of that size, USD an hour. `None`: not known in that region.

    `usd_per_gb_month`: a price of the cloud's list that was read since the release.
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
    """Return the machines with their disks and addresses. `keep` and `end` have the ids of existing machines."""
    rows: list[PlannedResource] = []
    total = len(create) + len(keep)
    groups: tuple[tuple[ResourceAction, int, str], ...] = (
        ("create", len(create), create[0].name if len(create) == 1 else ""),
        ("use", len(keep), keep[0] if len(keep) == 1 else ""),
    )
    for action, count, name in groups:
        if not count:
            continue
        detail = machine_text(offer, spot=cluster.spot)
        replaced = [machine.replaces for machine in create if machine.replaces and action == "create"]
        if replaced:
            detail += f", for {', '.join(replaced)}"
        kinds = [
            ("instance", name, detail, price.machines_usd),
            ("boot-volume", "", f"{offer.disk_gb} GB{' each' if count > 1 else ''}", price.disks_usd),
        ]
        if cluster.public_ip:
            kinds.append(("public-address", "", "IPv4", price.addresses_usd))
        rows += [
            PlannedResource(
                action=action,
                kind=kind,
                name=name,
                count=count,
                detail=detail,
                hourly_usd=None if usd is None else usd * count / total,
            )
            for kind, name, detail, usd in kinds
        ]
    if end:
        rows.append(PlannedResource(action="end", kind="instance", count=len(end), detail=", ".join(end)))
    return tuple(rows)


def network(preview: Preview, offer: Offer, *, changes: bool) -> tuple[PlannedResource, ...]:
    """Return the network's rows. Without changes: only the resources in use, and their price."""
    if changes:
        return preview.resources
    used = tuple(resource for resource in preview.resources if resource.action == "use")
    if not offer.network_hourly_usd or any(resource.kind == "nat-gateway" for resource in used):
        return used
    detail = "shared by all private clusters of the region, with its address"
    usd = offer.network_hourly_usd
    return (*used, PlannedResource(action="use", kind="nat-gateway", detail=detail, hourly_usd=usd))


def machine_text(offer: Offer, *, spot: bool) -> str:
    """Return the machines in words: `VM.GPU.A10.2, 2 x A10 24 GB, spot`."""
    shape = SHAPES.get(offer.shape)
    words = [offer.shape]
    if shape is not None and shape.gpus:
        words.append(f"{shape.gpus} x {shape.gpu} {shape.gpu_memory_gb} GB")
    elif offer.gpus:
        words.append(plural(offer.gpus, "GPU"))
    return ", ".join(words + ["spot"] * spot)


def ending_requests(provider: str, ids: Sequence[str]) -> tuple[PlannedRequest, ...]:
    """Return the requests that end these machines, with their boot volumes."""
    return describe(provider).ending_requests(ids) if ids else ()


def until_s(cluster: CloudCluster, *, lives: bool) -> float | None:
    """Return the seconds until the machines end. `None`: nothing ends them. `lives`: some exist already."""
    if cluster.expires_at is None:
        return None
    if not lives and cluster.ttl_s is not None:
        return cluster.ttl_s
    left = datetime.fromisoformat(cluster.expires_at) - datetime.now(UTC)
    return max(0.0, round(left.total_seconds()))


def route_note(cluster: CloudCluster) -> tuple[str, ...]:
    """Return a note if this computer knows no route to the machines."""
    if cluster.public_ip or cluster.bastion:
        return ()
    return ("the machines will have no public address: without --bastion, a VPN has to lead there",)


def to_create(
    cluster: CloudCluster, machines: Sequence[Instance], ranks: Iterable[int]
) -> tuple[PlannedMachine, ...]:
    """Return the machines to create for these ranks, in place of dead ones among `machines`."""
    dead = {machine.rank: machine.id for machine in reversed(machines)}
    return tuple(
        PlannedMachine(name=f"{cluster.name}-{rank}", rank=rank, shape=cluster.shape, replaces=dead.get(rank))
        for rank in sorted(ranks)
    )


def new_machines(create: Sequence[PlannedMachine]) -> tuple[NewMachine, ...]:
    """Return the machines as a preview takes them, without their user-data."""
    return tuple(NewMachine(name=machine.name, rank=machine.rank, user_data="") for machine in create)
