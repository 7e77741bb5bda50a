"""The requests of a dry run, made by the functions that make the real ones. Ids that OCI would give stand in <…>."""

from collections.abc import Sequence
from typing import Any

from provision.oci import requests
from provision.oci.catalog import refuse_not_launched
from provision.oci.description import acts_at, may_join_pool, pool_refusal
from provision.oci.images import choice
from provision.oci.images.lookup import DEFAULT_DISK_GB
from provision.pricing.catalog import SHAPES
from provision.records import CloudCluster, Infrastructure, NewMachine, Offer, Preview, Resource, Zone
from provision.rented.planning.preview import Previewer


def preview(
    cluster: CloudCluster,
    offer: Offer,
    machines: Sequence[NewMachine],
    resources: Sequence[Resource],
    let_in: Sequence[str] = (),
) -> Preview:
    """Return the preview: see `Cloud.preview`."""
    previewer = Previewer(cluster, resources)
    zone = offer.zones[0]
    ids = {"public_key": "<public key>"}
    if offer.terms is not None:
        listing, version = offer.facts["listing"]
        terms = {"listingId": listing, "listingResourceVersion": version, "signature": "<signature>"}
        previewer.call(
            ("CreateAppCatalogSubscription", requests.subscription(requests.compartment_of(cluster), terms))
        )
    if cluster.subnet_id:
        vcn = "<vcn>"
        ids["subnet"] = previewer.add("subnet", cluster.subnet_id, detail="an existing one")
    else:
        vcn, ids["subnet"] = _network(previewer, cluster)
    ids["nsg"] = _firewall(previewer, cluster, vcn, let_in)
    if requests.in_compute_cluster(cluster, offer.facts):
        ids["compute_cluster"] = previewer.add(
            "compute-cluster",
            previewer.of_cluster("compute-cluster"),
            ("CreateComputeCluster", requests.compute_cluster(cluster, zone.name)),
            detail=f"RDMA network in {zone.name}",
            placeholder="<compute cluster>",
        )
    for machine in machines:
        request = requests.launch(cluster, offer, Infrastructure(ids=ids), zone, "<launch>", machine)
        request["details"]["metadata"]["user_data"] = "<user data>"
        previewer.call(("LaunchInstance", request["details"]))
    if cluster.expires_at and machines and not pool_refusal(cluster):
        _scheduled_end(previewer, cluster, offer, Infrastructure(ids=ids), zone, len(machines))
    return previewer.preview()


def outline(cluster: CloudCluster) -> Offer:
    """Return an offer without an account: unknown values stand in <…>."""
    refuse_not_launched(cluster.shape)
    shape = SHAPES.get(cluster.shape)
    virtual = cluster.shape.startswith("VM.")
    rdma = bool(shape and shape.compute_cluster) and not virtual
    joins = requests.in_compute_cluster(cluster, {"compute_cluster": rdma})
    rdma_note = choice.expected_rdma_note(cluster) if joins else ""
    return Offer(
        shape=cluster.shape,
        gpus=shape.gpus if shape else 0,
        image_id=choice.unknown(cluster),
        image_name=choice.unknown(cluster),
        user="ubuntu",
        disk_gb=cluster.disk_gb or DEFAULT_DISK_GB,
        zones=(Zone(name="<availability domain>"),),
        hourly_usd=None,
        terms=choice.unknown_terms(cluster),
        facts={
            "listing": ("<listing>", "<version>"),
            "compute_cluster": rdma,
            "encrypts_in_transit": virtual,
        },
        notes=(rdma_note,) if rdma_note else (),
    )


def _scheduled_end(
    previewer: Previewer,
    cluster: CloudCluster,
    offer: Offer,
    infrastructure: Infrastructure,
    zone: Zone,
    count: int,
) -> None:
    """Add the pool that ends `count` new machines, and its schedule."""
    configuration = requests.instance_configuration(cluster, offer, infrastructure)
    pool = requests.instance_pool(
        cluster, configuration, "<instance configuration>", infrastructure.ids, zone
    )
    end = acts_at(cluster)
    pool_id = previewer.add(
        "instance-pool",
        previewer.of_cluster("instance-pool"),
        ("CreateInstanceConfiguration", configuration),
        ("CreateInstancePool", pool),
        (
            "CreateAutoScalingConfiguration",
            requests.autoscaling_configuration(cluster, "<instance pool>", end),
        ),
        detail=f"{'' if may_join_pool(cluster) else 'if OCI takes the machines, '}its schedule terminates them at "
        f"{end:%Y-%m-%d %H:%M} UTC",
        placeholder="<instance pool>",
    )
    for _ in range(count):
        body = {"instancePoolId": pool_id, "instanceId": "<instance>"}
        previewer.call(("AttachInstancePoolInstance", body))


def _network(previewer: Previewer, cluster: CloudCluster) -> tuple[str, str]:
    """Add the shared network. Returns the ids of the VCN and of its public or private subnet."""
    body: dict[str, Any] = requests.vcn(cluster)
    vcn = previewer.add(
        "vcn", previewer.shared("vcn"), ("CreateVcn", body), name=_name(body), detail=requests.VCN_CIDR
    )
    if cluster.public_ip:
        body = requests.internet_gateway(cluster, vcn)
        gateway = _gateway(previewer, "internet-gateway", "CreateInternetGateway", body)
        routes = requests.public_routes(gateway)
    else:
        nat = _gateway(previewer, "nat-gateway", "CreateNatGateway", requests.nat_gateway(cluster, vcn))
        body = requests.service_gateway(cluster, vcn, "<all services>")
        services = _gateway(previewer, "service-gateway", "CreateServiceGateway", body)
        routes = requests.private_routes(nat, services, "<all services>")
    body = requests.security_list(cluster, vcn)
    security = _gateway(previewer, "security-list", "CreateSecurityList", body)
    body = requests.route_table(cluster, vcn, routes)
    table = _named(previewer, "route-table", "CreateRouteTable", body)
    body = requests.subnet(cluster, vcn, table, security)
    return vcn, _named(
        previewer, "subnet", "CreateSubnet", body, detail=requests.SUBNET_CIDRS[requests.tier(cluster)]
    )


def _gateway(previewer: Previewer, kind: str, operation: str, body: dict[str, Any]) -> str:
    """Add a part of which the network has one."""
    placeholder = f"<{kind.replace('-', ' ')}>"
    return previewer.add(
        kind, previewer.shared(kind), (operation, body), name=_name(body), placeholder=placeholder
    )


def _named(previewer: Previewer, kind: str, operation: str, body: dict[str, Any], detail: str = "") -> str:
    """Add a part of which the public and the private machines have one each."""
    name = _name(body)
    existing = previewer.shared(kind, lambda resource: resource.name == name)
    placeholder = f"<{kind.replace('-', ' ')}>"
    return previewer.add(kind, existing, (operation, body), name=name, detail=detail, placeholder=placeholder)


def _firewall(previewer: Previewer, cluster: CloudCluster, vcn: str, let_in: Sequence[str]) -> str:
    """Add the cluster's group; of an existing group, the changed rules."""
    body = requests.nsg(cluster, vcn)
    existing = previewer.of_cluster("nsg")
    nsg = previewer.add("nsg", existing, ("CreateNetworkSecurityGroup", body), name=_name(body))
    new = [cidr for cidr in cluster.ssh_cidrs if existing is None or cidr not in let_in]
    rules = requests.nsg_rules(nsg, new, cluster.ssh_port)
    if existing is not None:
        rules = rules[: len(new)]
    if rules:
        previewer.call(("AddNetworkSecurityGroupSecurityRules", {"securityRules": rules}))
    old = [cidr for cidr in let_in if existing is not None and cidr not in cluster.ssh_cidrs]
    if old:
        body = {"securityRuleIds": [f"<SSH from {cidr}>" for cidr in old]}
        previewer.call(("RemoveNetworkSecurityGroupSecurityRules", body))
    return nsg


def _name(body: dict[str, Any]) -> str:
    return str(body["displayName"])
