"""The plan of `up` for rented machines: decides what is created, kept and ended, and shows it. Changes nothing."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories.specs.gpu_driver import unknown_branch
from inventories.specs.spec import Spec
from provision.clouds import describe
from provision.errors import BadCredentials, CloudError
from provision.owner import owner
from provision.pricing.catalog import last_driver_branch, nvidia_by_name
from provision.pricing.plan_price import PlanPrice
from provision.pricing.prices import load as load_prices
from provision.pricing.spending import refuse_over_max_cost
from provision.provider import Plan, PlannedMachine
from provision.records import CloudCluster, Instance, Offer, Resource, Target
from provision.rented.interface import Cloud
from provision.rented.interface import outline as outline_of
from provision.rented.machines import machine_of
from provision.rented.planning import caller_address, planned_resources
from provision.rented.planning.drivers import expected_plan
from provision.rented.planning.spec_checks import (
    NETWORK,
    boot_image,
    count_of,
    merge,
    recorded_image,
    refuse_changes,
    refuse_expired,
    refuse_gone_image,
    refuse_other_network,
    refuse_over_limits,
    refuse_stopped,
    refuse_unknown_shape,
)
from provision.rented.state import CloudState
from provision.rented.tags import CLUSTER, OWNER


@dataclass(frozen=True, kw_only=True)
class Details:
    """What `create` needs beside the plan."""

    cluster: CloudCluster
    offer: Offer


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """What is to be there, and how that is reached."""

    cluster: CloudCluster
    offer: Offer
    price: PlanPrice
    create: tuple[PlannedMachine, ...]
    keep: tuple[Instance, ...]
    """By rank."""
    end: tuple[str, ...]
    lives: bool
    """Whether machines of the record are there, or may come."""
    ssh_unknown: str


def make_plan(cloud: Cloud, files: CloudState, record: CloudCluster | None, spec: Spec) -> Plan:
    """The plan for an account. Asks the cloud what there is, by tag.

    Raises RefusedPlan where machines that are there could not become those of the spec.
    """
    decided = _decide(cloud, files, record, spec)
    wanted, offer, create, end = decided.cluster, decided.offer, decided.create, decided.end
    let_in = record.ssh_cidrs if record is not None else ()
    changes = bool(create) or set(let_in) != set(wanted.ssh_cidrs)
    # Machines that join stand where the others are.
    there = replace(offer, zones=(decided.keep[0].zone,)) if decided.keep else offer
    existing, failed = _resources(cloud)
    preview = cloud.preview(wanted, there, planned_resources.new_machines(create), existing, let_in)
    own = planned_resources.resources(
        wanted, offer, decided.price, create=create, keep=[m.id for m in decided.keep], end=end
    )
    notes = _notes(cloud, wanted, offer, create, known=record is not None, failed=failed if changes else None)
    return Plan(
        spec=spec,
        provider=cloud.name,
        region=wanted.target.region,
        create=create,
        end=end,
        keep=tuple(
            machine_of(one, files, wanted, gpus=offer.gpus, python=spec.python) for one in decided.keep
        ),
        price=decided.price,
        free=False,
        requests=(
            *planned_resources.ending_requests(cloud.name, end),
            *(preview.requests if changes else ()),
        ),
        resources=(*own, *planned_resources.network(preview, offer, changes=changes)),
        notes=notes,
        image=offer.image_name,
        image_why=offer.image_why,
        driver=offer.driver,
        terms=offer.terms,
        ssh_unknown=decided.ssh_unknown,
        **planned_resources.conditions(wanted, offer, lives=decided.lives),
        details=Details(cluster=wanted, offer=offer),
    )


def _decide(cloud: Cloud, files: CloudState, record: CloudCluster | None, spec: Spec) -> _Decision:
    machines = cloud.instances(record.id) if record else ()
    alive = {m.rank: m for m in machines if m.alive and m.rank is not None}
    open_ranks = {rank for launch in files.open_launches() for rank in launch.ranks}
    lives = bool(alive or open_ranks)
    count = count_of(spec, files.name, max((*alive, *open_ranks), default=-1) + 1)
    wanted = replace(wanted_cluster(cloud.name, files.name, record, spec, lives=lives), target=cloud.target)
    wanted = replace(wanted, boots_from=wanted.boots_from or boot_image(alive.values()))
    if not lives:
        wanted = replace(wanted, first_count=count)
    if record is not None and lives:
        refuse_changes(record, wanted)
    refuse_expired(wanted, datetime.now(UTC))
    refuse_stopped(wanted, alive.values())
    create = planned_resources.to_create(wanted, machines, set(range(count)) - set(alive))
    offer = _offer(cloud, wanted, terms=spec.accept_terms or spec.ask_terms)
    if create:
        refuse_gone_image(offer, files.name)
    else:
        offer = replace(offer, terms=None)  # what is not used needs no terms
    wanted = replace(wanted, boots_from=recorded_image(wanted, offer))
    moved = record is not None and any(getattr(record, name) != getattr(wanted, name) for name in NETWORK)
    if record is not None and moved:
        refuse_other_network(record, wanted, cloud.resources(), private=bool(offer.network_hourly_usd))
    refuse_over_limits(offer, len(create))
    cidrs, ssh_unknown = caller_address.planned_cidrs(wanted.ssh_cidr)
    wanted = replace(wanted, ssh_cidrs=cidrs)
    price = _price(files, wanted, offer, count)
    _refuse_over_max_cost(price, wanted)
    keep = tuple(machine for _, machine in sorted(alive.items()))
    kept = {machine.id for machine in keep}
    return _Decision(
        cluster=wanted,
        offer=offer,
        price=price,
        create=create,
        keep=keep,
        end=tuple(sorted(m.id for m in machines if m.alive and m.id not in kept)),
        lives=lives,
        ssh_unknown=ssh_unknown,
    )


def _refuse_over_max_cost(price: PlanPrice, cluster: CloudCluster) -> None:
    least_s = describe(cluster.target.provider).least_billed_s(cluster.shape)
    refuse_over_max_cost(price.most_hourly_usd, cluster.ttl_s, cluster.max_cost_usd, cluster.target, least_s)


def make_outline(provider: str, files: CloudState, spec: Spec) -> Plan:
    """The plan for an account that can't be asked: as if nothing of ours were there."""
    wanted = wanted_cluster(provider, files.name, None, spec, lives=False)
    cidrs = (wanted.ssh_cidr or caller_address.YOUR_ADDRESS,)
    wanted = replace(wanted, ssh_cidrs=cidrs, first_count=spec.count or 1)
    create = planned_resources.to_create(wanted, (), range(spec.count or 1))
    offer, preview = outline_of(wanted, planned_resources.new_machines(create))
    price = _price(files, wanted, offer, len(create))
    if price.most_hourly_usd is not None:
        _refuse_over_max_cost(price, wanted)
    own = planned_resources.resources(wanted, offer, price, create=create, keep=(), end=())
    driver = expected_plan(
        wanted.driver,
        wanted.image,
        shape=wanted.shape,
        nvidia=nvidia_by_name(wanted.shape),
        default=describe(provider).default_driver,
        last=last_driver_branch(wanted.shape),
    )
    why = "as asked for" if wanted.image else "the account can't be asked which images it can have"
    return Plan(
        spec=spec,
        provider=provider,
        region=wanted.target.region,
        create=create,
        keep=(),
        price=price,
        free=False,
        requests=preview.requests,
        resources=(*own, *preview.resources),
        notes=(*offer.notes, *unknown_branch(driver), *planned_resources.way_in(wanted)),
        image=offer.image_name,
        image_why=why,
        driver=driver,
        terms=offer.terms,
        **planned_resources.conditions(wanted, offer, lives=False),
    )


def wanted_cluster(
    provider: str, name: str, record: CloudCluster | None, spec: Spec, *, lives: bool
) -> CloudCluster:
    """The cluster as the spec asks for it, beside its record. `lives`: as `spec_checks.merge` says."""
    target = Target(provider=provider, region=spec.region, profile=spec.profile, compartment=spec.compartment)
    fresh = CloudCluster(
        name=name,
        id=record.id if record else secrets.token_hex(8),
        owner=owner(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        target=record.target if record else target,
        shape="",
    )
    return merge(spec, record, fresh, lives=lives, now=datetime.now(UTC))


def _offer(cloud: Cloud, cluster: CloudCluster, *, terms: bool) -> Offer:
    try:
        return cloud.offer(cluster, terms=terms)
    except BadCredentials as error:
        refuse_unknown_shape(cloud.name, cluster.shape, error)
        raise


def _price(files: CloudState, cluster: CloudCluster, offer: Offer, count: int) -> PlanPrice:
    """Of `count` machines: refreshed prices win over those of this release; one that varies is the offer's."""
    target = cluster.target
    prices = load_prices(files.home)
    price = prices.of(cluster.shape, target.region)
    on_demand_usd = price.usd_per_hour if price else None
    spot_share = describe(target.provider).spot_share
    varies = cluster.spot and spot_share is None
    each_usd = offer.hourly_usd if varies else on_demand_usd
    if cluster.spot and spot_share is not None and each_usd is not None:
        each_usd *= spot_share
    return planned_resources.price_of(
        cluster,
        offer,
        count,
        each_usd,
        varies=varies,
        most_usd=on_demand_usd if varies else None,
        disk_usd_per_gb_month=prices.disk_usd_per_gb_month(target.provider, target.region),
    )


def _resources(cloud: Cloud) -> tuple[tuple[Resource, ...], CloudError | None]:
    """What is there of ours beside machines; or why it could not be looked at."""
    try:
        return cloud.resources(), None
    except BadCredentials:
        raise
    except CloudError as error:
        return (), error


def _notes(
    cloud: Cloud,
    cluster: CloudCluster,
    offer: Offer,
    create: Sequence[PlannedMachine],
    *,
    known: bool,
    failed: CloudError | None,
) -> tuple[str, ...]:
    """What a person should know before they say yes."""
    notes = [*offer.notes, *unknown_branch(offer.driver)] if create else []
    if failed is not None:
        notes.append(f"what exists already could not be looked at, so all is shown as new: {failed}")
    if create:
        notes += planned_resources.way_in(cluster)
    seen = cluster.ssh_cidrs != (caller_address.YOUR_ADDRESS,)
    if create and seen and not cluster.public_ip and cluster.ssh_cidr is None:
        notes.append(
            f"SSH is let in from {', '.join(cluster.ssh_cidrs)}, which is where this computer is seen: a bastion "
            "or a VPN comes from another address, which --ssh-cidr names"
        )
    if not known:
        notes += _others(cloud, cluster.name)
    return tuple(notes)


def _others(cloud: Cloud, name: str) -> list[str]:
    """A note where machines of another cluster of that name are there."""
    others = [m for m in cloud.instances() if m.state != "ended" and m.tags.get(CLUSTER) == name]
    if not others:
        return []
    owners = ", ".join(sorted({machine.tags.get(OWNER, "unknown") for machine in others}))
    return [
        f"another cluster named {name} is there, with {len(others)} machines, made by {owners}: it is not in the "
        "files here, and `gpuctl reap --dry-run` shows it"
    ]
