"""The plan of `up` for rented machines: machines to create, keep and end, with their price. Changes nothing."""

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
from provision.records import CloudCluster, Instance, Offer, Target
from provision.rented.interface import Cloud
from provision.rented.interface import outline as outline_of
from provision.rented.planning import caller_address, planned_resources, spec_checks
from provision.rented.planning.drivers import expected_plan
from provision.rented.state import CloudState, machine_of
from provision.rented.tags import CLUSTER, LAUNCH, OWNER


@dataclass(frozen=True, kw_only=True)
class CloudPlan:
    """The data of a plan that only its provider needs, to carry it out."""

    cluster: CloudCluster
    offer: Offer


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """The machines that the cluster will have, and the steps to them."""

    cluster: CloudCluster
    offer: Offer
    price: PlanPrice
    create: tuple[PlannedMachine, ...]
    keep: tuple[Instance, ...]
    """By rank."""
    end: tuple[str, ...]
    lives: bool
    """Whether machines of the record exist, or may come up."""
    ssh_unknown: str


def make_plan(cloud: Cloud, files: CloudState, record: CloudCluster | None, spec: Spec) -> Plan:
    """Return the plan for an account. Reads the cloud's lists, by tag.

    Raises:
        RefusedPlan: existing machines could not become those of the spec.
    """
    decision = _decide(cloud, files, record, spec)
    cluster, offer, create, end = decision.cluster, decision.offer, decision.create, decision.end
    let_in = record.ssh_cidrs if record is not None else ()
    changes = bool(create) or set(let_in) != set(cluster.ssh_cidrs)
    # New machines join the zone of the others.
    in_zone = replace(offer, zones=(decision.keep[0].zone,)) if decision.keep else offer
    try:
        existing, failed = cloud.resources(), None
    except BadCredentials:
        raise
    except CloudError as error:
        existing, failed = (), error
    preview = cloud.preview(cluster, in_zone, planned_resources.new_machines(create), existing, let_in)
    plan = planned_resources.base_plan(
        spec,
        cloud.name,
        cluster,
        offer,
        decision.price,
        create=create,
        keep=tuple(
            machine_of(machine, files, cluster, gpus=offer.gpus, python=spec.python)
            for machine in decision.keep
        ),
        end=end,
        requests=(
            *planned_resources.ending_requests(cloud.name, end),
            *(preview.requests if changes else ()),
        ),
        more_rows=planned_resources.network(preview, offer, changes=changes),
        notes=_notes(
            cloud, cluster, offer, create, known=record is not None, failed=failed if changes else None
        ),
        lives=decision.lives,
    )
    details = CloudPlan(cluster=cluster, offer=offer)
    return replace(plan, ssh_unknown=decision.ssh_unknown, details=details)


def make_outline(provider: str, files: CloudState, spec: Spec) -> Plan:
    """Return the plan for an unknown account, as if it had no resource of ours."""
    count = spec.count or 1
    cluster = requested_cluster(provider, files.name, None, spec, lives=False)
    cidrs = (cluster.ssh_cidr or caller_address.YOUR_ADDRESS,)
    cluster = replace(cluster, ssh_cidrs=cidrs, first_count=count)
    create = planned_resources.to_create(cluster, (), range(count))
    offer, preview = outline_of(cluster, planned_resources.new_machines(create))
    price = _price(files, cluster, offer, count)
    if price.most_hourly_usd is not None:
        _refuse_over_max_cost(price, cluster)
    driver = expected_plan(
        cluster.driver,
        cluster.image,
        shape=cluster.shape,
        nvidia=nvidia_by_name(cluster.shape),
        default=describe(provider).default_driver,
        last=last_driver_branch(cluster.shape),
    )
    plan = planned_resources.base_plan(
        spec,
        provider,
        cluster,
        offer,
        price,
        create=create,
        requests=preview.requests,
        more_rows=preview.resources,
        notes=(*offer.notes, *unknown_branch(driver), *planned_resources.route_note(cluster)),
    )
    why = "as asked for" if cluster.image else "the account can't be asked which images it can have"
    return replace(plan, image_why=why, driver=driver)


def _decide(cloud: Cloud, files: CloudState, record: CloudCluster | None, spec: Spec) -> _Decision:
    machines = cloud.instances(record.id) if record else ()
    ranked = [machine for machine in machines if machine.alive and machine.rank is not None]
    launches = files.open_launches()
    open_ranks = {rank for launch in launches for rank in launch.ranks}
    lives = bool(ranked or open_ranks)
    count = spec_checks.count_of(spec, max((*(m.rank or 0 for m in ranked), *open_ranks), default=-1) + 1)
    undone = {launch.id for launch in launches if launch.is_undone(count, cloud.consistency_s)}
    alive = {m.rank or 0: m for m in ranked if m.tags.get(LAUNCH) not in undone}
    cluster = requested_cluster(cloud.name, files.name, record, spec, lives=lives)
    boots_from = cluster.boots_from or spec_checks.boot_image(alive.values())
    cluster = replace(cluster, target=cloud.target, boots_from=boots_from)
    if not lives:
        cluster = replace(cluster, first_count=count)
    if record is not None and lives:
        spec_checks.refuse_changes(record, cluster)
    spec_checks.refuse_expired(cluster, datetime.now(UTC))
    spec_checks.refuse_stopped(cluster, alive.values())
    create = planned_resources.to_create(cluster, machines, set(range(count)) - set(alive))
    try:
        offer = cloud.offer(cluster, terms=spec.accept_terms or spec.ask_terms)
    except BadCredentials as error:
        spec_checks.refuse_unknown_shape(cloud.name, cluster.shape, error)
        raise
    if create:
        spec_checks.refuse_gone_image(offer, files.name)
    else:
        offer = replace(offer, terms=None)  # an unused image needs no terms
    cluster = replace(cluster, boots_from=spec_checks.recorded_image(cluster, offer))
    moved = record is not None and any(
        getattr(record, name) != getattr(cluster, name) for name in spec_checks.NETWORK
    )
    if record is not None and moved:
        spec_checks.refuse_other_network(
            record, cluster, cloud.resources(), private=bool(offer.network_hourly_usd)
        )
    spec_checks.refuse_over_limits(offer, len(create))
    cidrs, ssh_unknown = caller_address.planned_cidrs(cluster.ssh_cidr)
    if record is not None and cluster.ssh_cidr is None and set(cidrs) <= set(record.ssh_cidrs):
        cidrs = record.ssh_cidrs  # other computers that use the cluster come from the other ranges
    cluster = replace(cluster, ssh_cidrs=cidrs)
    price = _price(files, cluster, offer, count)
    _refuse_over_max_cost(price, cluster)
    keep = tuple(machine for rank, machine in sorted(alive.items()) if rank < count)
    staying = {machine.id for machine in keep}
    return _Decision(
        cluster=cluster,
        offer=offer,
        price=price,
        create=create,
        keep=keep,
        end=tuple(sorted(m.id for m in machines if m.alive and m.id not in staying)),
        lives=lives,
        ssh_unknown=ssh_unknown,
    )


def _refuse_over_max_cost(price: PlanPrice, cluster: CloudCluster) -> None:
    least_s = describe(cluster.target.provider).least_billed_s(cluster.shape)
    refuse_over_max_cost(price.most_hourly_usd, cluster.ttl_s, cluster.max_cost_usd, cluster.target, least_s)


def requested_cluster(
    provider: str, name: str, record: CloudCluster | None, spec: Spec, *, lives: bool
) -> CloudCluster:
    """Return the cluster that the spec requests, with its record. `lives`: see `spec_checks.merge`."""
    target = Target(provider=provider, region=spec.region, profile=spec.profile, compartment=spec.compartment)
    empty = CloudCluster(
        name=name,
        id=record.id if record else secrets.token_hex(8),
        owner=owner(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        target=record.target if record else target,
        shape="",
    )
    return spec_checks.merge(spec, record, empty, lives=lives, now=datetime.now(UTC))


def _price(files: CloudState, cluster: CloudCluster, offer: Offer, count: int) -> PlanPrice:
    """Return the price of `count` machines. Refreshed prices win over the release's; the offer has varying ones."""
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


def _notes(
    cloud: Cloud,
    cluster: CloudCluster,
    offer: Offer,
    create: Sequence[PlannedMachine],
    *,
    known: bool,
    failed: CloudError | None,
) -> tuple[str, ...]:
    """Return the notes that a person should read before a yes."""
    notes = [*offer.notes, *unknown_branch(offer.driver)] if create else []
    if failed is not None:
        notes.append(f"what exists already could not be looked at, so all is shown as new: {failed}")
    if create:
        notes += planned_resources.route_note(cluster)
    address_known = cluster.ssh_cidrs != (caller_address.YOUR_ADDRESS,)
    if create and address_known and not cluster.public_ip and cluster.ssh_cidr is None:
        notes.append(
            f"SSH is let in from {', '.join(cluster.ssh_cidrs)}, which is where this computer is seen: a bastion "
            "or a VPN comes from another address, which --ssh-cidr names"
        )
    if not known:
        machines = [
            m for m in cloud.instances() if m.state != "ended" and m.tags.get(CLUSTER) == cluster.name
        ]
        if machines:
            owners = ", ".join(sorted({machine.tags.get(OWNER, "unknown") for machine in machines}))
            notes.append(
                f"another cluster named {cluster.name} is there, with {len(machines)} machines, made by {owners}: it "
                "is not in the files here, and `gpuctl reap --dry-run` shows it"
            )
    return tuple(notes)
