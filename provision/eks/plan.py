"""The plan of `up` on EKS: decides what is created and kept, and shows it with its price. Changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories.machine import Machine
from inventories.spec import Spec
from provision.cloud import tags
from provision.cloud.planning import caller_address, planned_resources
from provision.cloud.planning.plan import wanted_cluster
from provision.cloud.planning.spec_checks import count_of, refuse_changes, refuse_expired
from provision.cloud.records import (
    CloudCluster,
    Offer,
    PlannedRequest,
    PlannedResource,
    Resource,
    ResourceAction,
)
from provision.cloud.state import CloudState
from provision.eks import names, offers, price, requests
from provision.eks.cloud import EksCloud
from provision.eks.description import CONTROL_PLANE_HOURLY_USD
from provision.eks.resources import listing
from provision.pricing.prices import load as load_prices
from provision.pricing.spending import refuse_over_max_cost
from provision.provider import Plan, PlannedMachine

TOKEN = "<token>"  # noqa: S105 - what stands for one


@dataclass(frozen=True, kw_only=True)
class Details:
    """What `create` needs beside the plan."""

    cluster: CloudCluster
    offer: Offer
    count: int


def make_plan(
    cloud: EksCloud, files: CloudState, record: CloudCluster | None, spec: Spec, machines: Sequence[Machine]
) -> Plan:
    """The plan. `machines`: those that there are. Raises RefusedPlan where they could not become the spec's."""
    found = cloud.resources()
    lives = record is not None and any(one.tags.get(tags.CLUSTER_ID) == record.id for one in found)
    count = count_of(spec, files.name, len(machines))
    cluster = wanted_cluster(names.PROVIDER, files.name, record, spec, lives=lives)
    cluster = replace(cluster, target=replace(cloud.target, profile=spec.profile or cluster.target.profile))
    if record is not None and lives:
        refuse_changes(record, cluster)
    there = {machine.rank for machine in machines}
    create = planned_resources.to_create(cluster, (), sorted(set(range(count)) - there))
    if create:
        refuse_expired(cluster, datetime.now(UTC))
    offer = offers.find(cloud.api, cluster)
    if create:
        offers.refuse_over_quota(cloud.api, cluster, offer, count)
    cidrs, unknown = caller_address.planned_cidrs(cluster.ssh_cidr)
    cluster = replace(cluster, ssh_cidrs=cidrs)
    parts = price.of(load_prices(files.home), cluster, offer, count)
    refuse_over_max_cost(parts.whole.most_hourly_usd, cluster.ttl_s, cluster.max_cost_usd, cluster.target)
    own = [one for one in found if record is not None and one.tags.get(tags.CLUSTER_ID) == record.id]
    unfinished = not {listing.CLUSTER, listing.NODE_GROUP} <= {one.kind for one in own}
    conditions = planned_resources.conditions(cluster, offer, lives=lives)
    return Plan(
        spec=spec,
        provider=names.PROVIDER,
        region=cluster.target.region,
        create=create,
        keep=tuple(machines),
        price=parts.whole,
        free=False,
        requests=preview(cluster, offer, count, own) if create or unfinished else (),
        resources=tuple(_resources(cluster, offer, parts, create, machines, own, found)),
        ssh_cidrs=cluster.ssh_cidrs,
        ssh_unknown=unknown,
        until_s=conditions["until_s"],
        ending=conditions["ending"],
        notes=_notes(cluster),
        image=offer.image_name,
        image_why=offer.image_why,
        driver=offer.driver,
        details=Details(cluster=cluster, offer=offer, count=count),
    )


def _notes(cluster: CloudCluster) -> tuple[str, ...]:
    told = ["the first `up` takes about twenty minutes: EKS makes a control plane in ten, and nodes after it"]
    if cluster.expires_at is None:
        return tuple(told)
    return (*told, "the node groups end their machines at that time also when this computer is off")


def preview(
    cluster: CloudCluster, offer: Offer, count: int, there: Sequence[Resource]
) -> tuple[PlannedRequest, ...]:
    """The requests for what is not there yet, by the functions that make the real ones."""
    kinds = {one.kind for one in there}
    zone = offer.zones[0].name
    subnets = [f"<subnet {name}>" for name in offer.facts["control_zones"]]
    gpu, cpu = names.gpu_group(zone), names.CPU_GROUP
    made: list[tuple[str, requests.Request]] = []
    if listing.ROLE not in kinds:
        made += [("CreateRole", requests.role(cluster, what)) for what in requests.ROLES]
    if listing.CLUSTER not in kinds:
        role = f"<role {names.CLUSTER_ROLE}>"
        made.append(
            ("CreateCluster", requests.control_plane(cluster, role, subnets, "<security-group>", TOKEN))
        )
        made += [("CreateAddon", requests.addon(cluster, name, TOKEN)) for name in requests.ADDONS]
    if listing.NODE_GROUP not in kinds:
        role = f"<role {names.NODE_ROLE}>"
        templates = [(cpu, requests.CPU_DISK_GB, None), (gpu, offer.disk_gb, offer.facts)]
        made += [
            (
                "CreateLaunchTemplate",
                requests.launch_template(cluster, group, disk_gb=disk_gb, token=TOKEN, facts=facts),
            )
            for group, disk_gb, facts in templates
        ]
        ids = {"role": role, "subnet": f"<subnet {zone}>", "template": f"<launch-template {gpu}>"}
        made += [
            (
                "CreateNodegroup",
                requests.cpu_group(cluster, role, subnets, f"<launch-template {cpu}>", TOKEN),
            ),
            ("CreateNodegroup", requests.gpu_group(cluster, offer, count, zone, ids, TOKEN)),
        ]
    return tuple(PlannedRequest(operation=operation, body=body) for operation, body in made)


def _resources(
    cluster: CloudCluster,
    offer: Offer,
    parts: price.Parts,
    create: Sequence[PlannedMachine],
    machines: Sequence[Machine],
    own: Sequence[Resource],
    found: Sequence[Resource],
) -> list[PlannedResource]:
    kinds = {one.kind for one in own}

    def action(there: bool) -> ResourceAction:
        return "use" if there else "create"

    network = any(one.kind == "vpc" and tags.is_shared(one.tags) for one in found)
    return [
        *planned_resources.resources(
            cluster, offer, parts.gpus, create=create, keep=[machine.id for machine in machines], end=()
        ),
        PlannedResource(
            action=action(listing.NODE_GROUP in kinds),
            kind="instance",
            detail=f"{requests.CPU_TYPE} with {requests.CPU_DISK_GB} GB, for the operators and Ray's head",
            hourly_usd=parts.cpu_usd,
        ),
        PlannedResource(
            action=action(listing.CLUSTER in kinds),
            kind="control-plane",
            name=names.cluster_name(cluster),
            detail="EKS, with its add-ons",
            hourly_usd=CONTROL_PLANE_HOURLY_USD,
        ),
        PlannedResource(
            action=action(listing.ROLE in kinds),
            kind="role",
            count=2,
            detail="of the control plane, of nodes",
        ),
        PlannedResource(
            action=action(network),
            kind="vpc",
            name="gpuctl",
            detail="shared by all clusters of the region, with subnets in two zones",
            hourly_usd=offer.network_hourly_usd,
        ),
    ]
