"""The plan of `up`: decides what is created and kept, and shows it with its price. Changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories.machine import Machine
from inventories.specs.spec import Spec
from provision.errors import ProvisionError
from provision.pricing.prices import load as load_prices
from provision.pricing.spending import refuse_over_max_cost
from provision.provider import Plan, PlannedMachine
from provision.records import CloudCluster, Offer, PlannedResource, Resource, ResourceAction
from provision.rented import tags
from provision.rented.managed_kubernetes import price
from provision.rented.managed_kubernetes.service import KubernetesService, ServiceFacts
from provision.rented.planning import caller_address, planned_resources
from provision.rented.planning.plan import wanted_cluster
from provision.rented.planning.spec_checks import count_now, refuse_changes, refuse_expired
from provision.rented.state import CloudState


@dataclass(frozen=True, kw_only=True)
class Details:
    """What `create` needs beside the plan."""

    cluster: CloudCluster
    offer: Offer
    count: int
    ends_only: bool = False
    """The offer is an outline, as the cloud does not tell; nothing can be made of it."""


def make_plan(
    service: KubernetesService,
    files: CloudState,
    record: CloudCluster | None,
    spec: Spec,
    machines: Sequence[Machine],
    *,
    cidrs: tuple[str, ...],
    unknown: str,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan. Raises RefusedPlan where the machines can't become the spec's.

    `machines`: those that there are; `cidrs`: who may reach the API server, or why that is `unknown`.
    """
    facts = service.facts
    found = service.cloud.resources()
    own = [one for one in found if record is not None and one.tags.get(tags.CLUSTER_ID) == record.id]
    lives = bool(own)
    cluster = wanted_cluster(facts.name, files.name, record, spec, lives=lives)
    count = count_now(spec, cluster, len(machines))
    profile = spec.profile or cluster.target.profile
    cluster = replace(cluster, target=replace(service.cloud.target, profile=profile))
    if record is not None and lives:
        refuse_changes(record, cluster)
    keep = tuple(machine for machine in machines if machine.rank < count)
    create = planned_resources.to_create(
        cluster, (), sorted(set(range(count)) - {machine.rank for machine in keep})
    )
    unfinished = not {facts.cluster_kind, facts.nodes_kind} <= {one.kind for one in own}
    if create or unfinished:
        refuse_expired(cluster, datetime.now(UTC))
    end = tuple(machine.id for machine in machines if machine.rank >= count)
    ends_only = False
    try:
        offer = service.offer(cluster)
    except ProvisionError:
        if create or unfinished or not end:
            raise
        offer, ends_only = facts.outline(cluster), True
    most = max(count, cluster.max_count or 0)
    if create or unfinished:
        service.refuse_over_quota(cluster, offer, most if unfinished else count, len(keep))
    cluster = replace(cluster, ssh_cidrs=cidrs)
    prices = load_prices(files.home)
    beside = facts.beside(prices, cluster.target.region)
    parts = price.of(prices, cluster, offer, count, beside)
    at_most_usd = price.of(prices, cluster, offer, most, beside).whole.most_hourly_usd
    if create or unfinished or record is None or _may_cost_more(record, cluster):
        refuse_over_max_cost(at_most_usd, cluster.ttl_s, cluster.max_cost_usd, cluster.target)
    conditions = planned_resources.conditions(cluster, offer, lives=lives)
    return Plan(
        spec=spec,
        provider=facts.name,
        region=cluster.target.region,
        create=create,
        keep=keep,
        end=end,
        run_hourly_usd=None if cluster.max_count is None else at_most_usd,
        makes_control_plane=unfinished,
        price=parts.whole,
        free=False,
        requests=facts.preview(cluster, offer, count, own) if create or unfinished else (),
        resources=tuple(_resources(facts, cluster, offer, parts, create, keep, own, found)),
        ssh_cidrs=cluster.ssh_cidrs,
        ssh_unknown=unknown,
        until_s=conditions["until_s"],
        ending=conditions["ending"],
        ends=conditions["ends"],
        ttl_ends_bill=conditions["ttl_ends_bill"],
        least_billed_s=conditions["least_billed_s"],
        notes=(
            *notes,
            *_limits(cluster),
            *((facts.replacement,) if cluster.spot and (create or unfinished) else ()),
            *(offer.notes if create or unfinished else ()),
            *((facts.lasts,) if unfinished else ()),
        ),
        image=offer.image_name,
        image_why=offer.image_why,
        driver=offer.driver,
        details=Details(cluster=cluster, offer=offer, count=count, ends_only=ends_only),
    )


def make_outline(facts: ServiceFacts, files: CloudState, spec: Spec) -> Plan:
    """Return the plan for an account that can't be asked: as if nothing of ours were there."""
    cluster = wanted_cluster(facts.name, files.name, None, spec, lives=False)
    cluster = replace(cluster, ssh_cidrs=(cluster.ssh_cidr or caller_address.YOUR_ADDRESS,))
    create = planned_resources.to_create(cluster, (), range(count_now(spec, cluster, 0)))
    offer = facts.outline(cluster)
    prices = load_prices(files.home)
    beside = facts.beside(prices, cluster.target.region)
    parts = price.of(prices, cluster, offer, len(create), beside)
    most = max(len(create), cluster.max_count or 0)
    at_most_usd = price.of(prices, cluster, offer, most, beside).whole.most_hourly_usd
    if at_most_usd is not None:
        refuse_over_max_cost(at_most_usd, cluster.ttl_s, cluster.max_cost_usd, cluster.target)
    return Plan(
        spec=spec,
        provider=facts.name,
        region=cluster.target.region,
        create=create,
        keep=(),
        run_hourly_usd=None if cluster.max_count is None else at_most_usd,
        makes_control_plane=True,
        price=parts.whole,
        free=False,
        requests=facts.preview(cluster, offer, len(create), ()),
        resources=tuple(_resources(facts, cluster, offer, parts, create, (), (), ())),
        notes=(
            *_limits(cluster),
            *((facts.replacement,) if cluster.spot else ()),
            *offer.notes,
            facts.lasts,
        ),
        image=offer.image_name,
        image_why=offer.image_why,
        driver=offer.driver,
        **planned_resources.conditions(cluster, offer, lives=False),
    )


def _may_cost_more(record: CloudCluster, wanted: CloudCluster) -> bool:
    """Whether something else is asked for than before that may cost more, or less than what it costs."""
    return any(
        getattr(record, name) != getattr(wanted, name) for name in ("max_count", "ttl_s", "max_cost_usd")
    )


def _limits(cluster: CloudCluster) -> tuple[str, ...]:
    """A note where runs start and end machines."""
    if cluster.max_count is None:
        return ()
    stay = cluster.min_count or 0
    return (
        f"a run starts the machines that it needs, {cluster.max_count} at most, and ends them after it; "
        f"{stay or 'none'} {'stays' if stay == 1 else 'stay'} between runs",
    )


def use_or_create(there: bool) -> ResourceAction:
    """What the plan says of a part."""
    return "use" if there else "create"


def _resources(
    facts: ServiceFacts,
    cluster: CloudCluster,
    offer: Offer,
    parts: price.Parts,
    create: Sequence[PlannedMachine],
    machines: Sequence[Machine],
    own: Sequence[Resource],
    found: Sequence[Resource],
) -> list[PlannedResource]:
    kinds = {one.kind for one in own}
    return [
        *planned_resources.resources(
            cluster, offer, parts.gpus, create=create, keep=[machine.id for machine in machines], end=()
        ),
        PlannedResource(
            action=use_or_create(facts.nodes_kind in kinds),
            kind="instance",
            detail=f"{facts.cpu_machine}, for the operators and Ray's head",
            hourly_usd=parts.cpu_usd,
        ),
        PlannedResource(
            action=use_or_create(facts.cluster_kind in kinds),
            kind="control-plane",
            name=facts.cluster_name(cluster),
            detail=f"{facts.name.upper()}, with its add-ons",
            hourly_usd=parts.control_plane_usd,
        ),
        *facts.extras(offer, own, found),
    ]
