"""The plan of `up` for Kubernetes as a service: machines to create and to keep, with their price. Changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.clouds import base_of, describe
from provision.errors import ProvisionError
from provision.pricing.plan_price import PlanPrice
from provision.pricing.prices import Prices
from provision.pricing.prices import load as load_prices
from provision.pricing.spending import refuse_over_max_cost
from provision.provider import Plan
from provision.records import CloudCluster, Offer, PlannedResource, ResourceAction
from provision.rented import tags
from provision.rented.managed_kubernetes.service import FixedCosts, KubernetesService, ServiceTraits
from provision.rented.planning import planned_resources
from provision.rented.planning.plan import requested_cluster
from provision.rented.planning.spec_checks import count_now, refuse_changes, refuse_expired
from provision.rented.state import CloudState


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """The data of a plan that only its provider needs, to carry it out."""

    cluster: CloudCluster
    offer: Offer
    count: int
    ends_only: bool = False
    """The offer is an outline, as the cloud gave no answer, and can't be created."""


@dataclass(frozen=True, kw_only=True)
class _Price:
    """The prices of the two groups of machines, each with disks and addresses."""

    gpus: PlanPrice
    """With the network."""
    cpu: PlanPrice
    control_plane_usd: float

    @property
    def whole(self) -> PlanPrice:
        """The price of the cluster."""
        return replace(self.gpus + self.cpu, control_plane_usd=self.control_plane_usd)


def make_plan(
    traits: ServiceTraits,
    service: KubernetesService | None,
    files: CloudState,
    record: CloudCluster | None,
    spec: Spec,
    machines: Sequence[Machine],
    *,
    cidrs: tuple[str, ...],
    requested: int = 0,
    unknown: str = "",
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan for an account. Raises RefusedPlan if the spec needs other machines.

    `service`: `None` for an unknown account, as if it had no resource of ours. `cidrs`: ranges that will reach the
    API server; `unknown`: reason why they are not known. `requested`: machines that Kubernetes was asked for last.
    `notes`: notes that the plan begins with.
    """
    listed = () if service is None else service.cloud.resources()
    existing = [
        resource
        for resource in listed
        if record is not None and resource.tags.get(tags.CLUSTER_ID) == record.id
    ]
    kinds = {resource.kind for resource in existing}
    lives = bool(existing)
    cluster = requested_cluster(traits.name, files.name, record, spec, lives=lives)
    count = count_now(spec, cluster, max(len(machines), requested))
    if service is not None:
        profile = spec.profile or cluster.target.profile
        cluster = replace(cluster, target=replace(service.cloud.target, profile=profile))
    if record is not None and lives:
        refuse_changes(record, cluster)
    keep = tuple(machine for machine in machines if machine.rank < count)
    missing = set(range(count)) - {machine.rank for machine in keep}
    create = planned_resources.to_create(cluster, (), missing)
    unfinished = not {traits.cluster_kind, traits.nodes_kind} <= kinds
    grows = bool(create) or unfinished
    if grows:
        refuse_expired(cluster, datetime.now(UTC))
    end = tuple(machine.id for machine in machines if machine.rank >= count)
    ends_only = False
    try:
        offer = traits.outline(cluster) if service is None else service.offer(cluster)
    except ProvisionError:
        if grows or not end:
            raise
        offer, ends_only = traits.outline(cluster), True
    max_count = max(count, cluster.max_count or 0)
    if service is not None and grows:
        service.refuse_over_quota(cluster, offer, max_count if unfinished else count, len(keep))
    cluster = replace(cluster, ssh_cidrs=cidrs)
    prices = load_prices(files.home)
    costs = traits.fixed_costs(prices, cluster.target.region)
    price = _price(prices, cluster, offer, count, costs)
    max_usd = _price(prices, cluster, offer, max_count, costs).whole.most_hourly_usd
    # Each of these may let it cost more than the record allows, or lower the limit.
    limits = ("max_count", "ttl_s", "max_cost_usd")
    changed = record is None or any(getattr(record, name) != getattr(cluster, name) for name in limits)
    if (grows or changed) and (service is not None or max_usd is not None):
        refuse_over_max_cost(max_usd, cluster.ttl_s, cluster.max_cost_usd, cluster.target)
    network_kind, network_detail = traits.network
    roles = [
        PlannedResource(action=use_or_create("role" in kinds), kind="role", count=2, detail=traits.roles)
    ] * bool(traits.roles)
    plan = planned_resources.base_plan(
        spec,
        traits.name,
        cluster,
        offer,
        price.whole,
        machines_price=price.gpus,
        create=create,
        keep=keep,
        requests=traits.preview(cluster, offer, count, existing) if grows else (),
        more_rows=(
            PlannedResource(
                action=use_or_create(traits.nodes_kind in kinds),
                kind="instance",
                detail=f"{traits.cpu_machine}, for the operators and Ray's head",
                hourly_usd=price.cpu.hourly_usd,
            ),
            PlannedResource(
                action=use_or_create(traits.cluster_kind in kinds),
                kind="control-plane",
                name=cluster.kubernetes_name,
                detail=f"{traits.name.upper()}, with its add-ons",
                hourly_usd=price.control_plane_usd,
            ),
            *roles,
            PlannedResource(
                action=use_or_create(
                    any(each.kind == network_kind and tags.is_shared(each.tags) for each in listed)
                ),
                kind=network_kind,
                name="gpuctl",
                detail=network_detail,
                hourly_usd=offer.network_hourly_usd,
            ),
        ),
        notes=(*notes, *_notes(traits, cluster, offer, grows=grows, first=unfinished)),
        lives=lives,
    )
    details = ServicePlan(cluster=cluster, offer=offer, count=count, ends_only=ends_only)
    return replace(
        plan,
        end=end,
        run_hourly_usd=None if cluster.max_count is None else max_usd,
        makes_control_plane=unfinished,
        ssh_unknown=unknown,
        details=None if service is None else details,
    )


def use_or_create(exists: bool) -> ResourceAction:
    """Return the plan's action for a resource."""
    return "use" if exists else "create"


def _price(prices: Prices, cluster: CloudCluster, offer: Offer, count: int, costs: FixedCosts) -> _Price:
    provider, region = base_of(cluster.target.provider), cluster.target.region
    disk_month_usd = prices.disk_usd_per_gb_month(provider, region)
    listed = prices.of(cluster.shape, region)
    on_demand_usd = listed.usd_per_hour if listed else None
    varies = cluster.spot and describe(provider).spot_share is None
    gpus = planned_resources.price_of(
        cluster,
        offer,
        count,
        offer.hourly_usd if cluster.spot else on_demand_usd,
        varies=varies,
        most_usd=on_demand_usd if varies else None,
        disk_usd_per_gb_month=disk_month_usd,
    )
    cpu_offer = replace(offer, disk_gb=costs.cpu_disk_gb, network_hourly_usd=0.0)
    cpu = planned_resources.price_of(
        cluster, cpu_offer, 1, costs.cpu_usd, disk_usd_per_gb_month=disk_month_usd
    )
    return _Price(gpus=gpus, cpu=cpu, control_plane_usd=costs.control_plane_usd)


def _notes(
    traits: ServiceTraits, cluster: CloudCluster, offer: Offer, *, grows: bool, first: bool
) -> tuple[str, ...]:
    """Return the notes. `grows`: the plan makes machines. `first`: it makes the control plane, too."""
    notes: list[str] = []
    if cluster.max_count is not None:
        stay = cluster.min_count or 0
        notes.append(
            f"a run starts the machines that it needs, {cluster.max_count} at most, and ends them after it; "
            f"{stay or 'none'} {'stays' if stay == 1 else 'stay'} between runs"
        )
    if grows:
        notes += [traits.replacement] * cluster.spot + list(offer.notes)
    if first:
        notes.append(
            f"the first `up` takes about twenty minutes: {traits.name.upper()} makes a control plane in ten, and "
            "nodes after it"
        )
    return tuple(notes)
