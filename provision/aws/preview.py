"""The requests of a dry run, made by the functions that make the real ones, and the plan's notes.

Ids that AWS would give stand in <…>.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from provision.aws import requests
from provision.aws.catalog import ADDRESS_HOURLY_USD, NAT_HOURLY_USD
from provision.aws.images import choice, lookup
from provision.aws.requests import for_people, gateway_field
from provision.pricing.catalog import SHAPES
from provision.records import CloudCluster, Infrastructure, NewMachine, Offer, Preview, Resource, Zone
from provision.rented import tags
from provision.rented.planning.preview import Previewer

_HAS_EFA_PLUGIN = re.compile(r"deep ?learning", re.IGNORECASE)
"""Names of AWS's images with libfabric and aws-ofi-nccl, and the paths of their SSM parameters."""

NAT_NOTE = (
    "the private network has a NAT gateway, which takes AWS a few minutes to make and costs money by itself: in "
    f"us-east-1 about ${NAT_HOURLY_USD} an hour, $0.045 for each GB that passes through it, and "
    f"${ADDRESS_HOURLY_USD} an hour for its address "
    "(list prices, https://aws.amazon.com/vpc/pricing/; traffic to S3 in the region passes by it). There is one for "
    "all private clusters of the region, and it lives as long as the last of them"
)


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
    ids = {"key": requests.name_of(cluster)}
    if cluster.subnet_id is None:
        ids["vpc"], ids["subnet"] = _network(previewer, cluster, zone)
    else:
        ids["vpc"] = offer.facts["subnet"]["vpc"]
        ids["subnet"] = previewer.add("subnet", cluster.subnet_id, detail="an existing one")
    ids["security_group"] = _firewall(previewer, cluster, offer, ids["vpc"], let_in)
    previewer.add(
        "key-pair",
        previewer.of_cluster("key-pair"),
        ("ImportKeyPair", for_people(requests.key_pair(cluster, "<public key>"))),
        name=requests.name_of(cluster),
    )
    if requests.in_placement_group(cluster, offer.facts):
        placement = requests.placement_group(cluster, zone.name)
        name = ids["placement_group"] = placement["GroupName"]
        group_id = previewer.of_cluster("placement-group", lambda resource: resource.name == name)
        previewer.add("placement-group", group_id, ("CreatePlacementGroup", placement), name=name)
    if machines:
        request = requests.run_instances(cluster, offer, Infrastructure(ids=ids), zone, "<launch>", machines)
        previewer.call(("RunInstances", for_people(request)))
    return previewer.preview()


def outline(cluster: CloudCluster) -> Offer:
    """Return an offer without an account: unknown values stand in <…>."""
    shape = SHAPES.get(cluster.shape)
    region = cluster.target.region or "<region>"
    offer = Offer(
        shape=cluster.shape,
        gpus=shape.gpus if shape else 0,
        image_id=choice.unknown(cluster),
        image_name=choice.unknown(cluster),
        user="ubuntu",
        disk_gb=cluster.disk_gb or lookup.MIN_DISK_GB,
        zones=(Zone(name=f"{region}a"),),
        hourly_usd=None,
        network_hourly_usd=requests.network_hourly_usd(cluster),
        facts={
            "efa_cards": list(range(shape.efa if shape else 0)),
            "first_card_interfaces": 2,
            "placement_group": bool(shape and shape.placement_group),
            "root_device": "/dev/sda1",
            "other_devices": [],
            "subnet": {"vpc": "<vpc>"},
        },
    )
    return replace(offer, notes=notes(cluster, offer))


def notes(cluster: CloudCluster, offer: Offer) -> tuple[str, ...]:
    """Return the plan's notes."""
    nat = NAT_NOTE if requests.is_private(cluster) else None
    candidates = (efa_note(cluster, offer), plugin_note(cluster, offer), placement_note(cluster, offer), nat)
    return tuple(note for note in candidates if note)


def plugin_note(cluster: CloudCluster, offer: Offer) -> str | None:
    """Return the note on machines with EFA whose image may lack what NCCL needs for it."""
    if not offer.facts["efa_cards"] or cluster.first_count == 1 or _HAS_EFA_PLUGIN.search(offer.image_name):
        return None
    return (
        "NCCL uses EFA only if the image has libfabric and aws-ofi-nccl, as AWS's Deep Learning images do: without "
        "them it uses TCP sockets"
    )


def placement_note(cluster: CloudCluster, offer: Offer) -> str | None:
    """Return the note on machines that join a cluster of one machine, without a placement group."""
    grows = cluster.boots_from is not None
    if not grows or not offer.facts["placement_group"] or requests.in_placement_group(cluster, offer.facts):
        return None
    return (
        "the cluster began with one machine, so its machines are in no placement group, and AWS moves no running "
        "machine into one. For the shortest network between them: "
        f"`gpuctl down --cluster {cluster.name}`, then `gpuctl up` with the final --count"
    )


def efa_note(cluster: CloudCluster, offer: Offer) -> str | None:
    """Return the note on EFA interfaces that a machine with a public address can't have."""
    total = len(offer.facts["efa_cards"])
    layout = requests.efa_layout(offer.facts, public=cluster.public_ip)
    used = sum(1 for interface in layout if "InterfaceType" in interface)
    if used >= total:
        return None
    return (
        f"{used} of the {total} EFA interfaces of {offer.shape} will be used: AWS gives a public address only to "
        "a machine with a single interface. With --no-public-ip and a bastion (--bastion) it has all of them."
    )


def _network(previewer: Previewer, cluster: CloudCluster, zone: Zone) -> tuple[str, str]:
    """Add the shared network. Returns the ids of the VPC and of the zone's public or private subnet."""
    body = requests.vpc(cluster)
    name = requests.NETWORK_NAME
    vpc = previewer.add(
        "vpc", previewer.shared("vpc"), ("CreateVpc", body), name=name, detail=requests.VPC_CIDR
    )
    gateway = previewer.add(
        "internet-gateway",
        previewer.shared("internet-gateway"),
        ("CreateInternetGateway", requests.internet_gateway(cluster)),
        ("AttachInternetGateway", {"InternetGatewayId": "<internet-gateway>", "VpcId": vpc}),
        name=name,
    )
    table = previewer.add(
        "route-table",
        previewer.shared(
            "route-table", lambda resource: resource.network == vpc and not tags.is_private(resource.tags)
        ),
        ("CreateRouteTable", requests.route_table(cluster, vpc, "<token>")),
        ("CreateRoute", requests.default_route("<route-table>", gateway_field(gateway))),
        name=name,
    )
    if not requests.is_private(cluster):
        return vpc, _subnet(previewer, cluster, vpc, zone, table)
    nat = previewer.shared("nat-gateway", lambda resource: resource.network == vpc)
    # An existing NAT gateway has its subnet already.
    subnet = "<subnet>" if nat else _subnet(previewer, cluster, vpc, zone, table)
    return vpc, _private_network(previewer, cluster, vpc, zone, nat, subnet)


def _subnet(
    previewer: Previewer, cluster: CloudCluster, vpc: str, zone: Zone, table: str, *, private: bool = False
) -> str:
    """Add the zone's public or private subnet."""
    cidr = requests.subnet_cidr(zone.name, (), private=private)
    placeholder = "<private subnet>" if private else "<subnet>"
    kind = "private " if private else ""

    def in_zone(resource: Resource) -> bool:
        in_vpc = resource.network == vpc and resource.name.endswith(f" {zone.name}")
        return in_vpc and tags.is_private(resource.tags) == private

    return previewer.add(
        "subnet",
        previewer.shared("subnet", in_zone),
        ("CreateSubnet", requests.subnet(cluster, vpc, zone.name, cidr, private=private)),
        ("AssociateRouteTable", {"RouteTableId": table, "SubnetId": placeholder}),
        name=f"{requests.NETWORK_NAME} {kind}{zone.name}",
        detail=cidr,
        placeholder=placeholder,
    )


def _private_network(
    previewer: Previewer, cluster: CloudCluster, vpc: str, zone: Zone, nat: str | None, subnet: str
) -> str:
    """Add the private subnet with its routes. `nat`: the existing NAT gateway."""
    name = f"{requests.NETWORK_NAME} private"
    # A free address is in no network.
    address = previewer.add(
        "elastic-ip",
        previewer.shared("elastic-ip", lambda resource: resource.network == (None if nat is None else vpc)),
        ("AllocateAddress", requests.elastic_ip(cluster)),
        name=name,
        detail="of the NAT gateway",
        hourly_usd=ADDRESS_HOURLY_USD,
    )
    nat = previewer.add(
        "nat-gateway",
        nat,
        ("CreateNatGateway", requests.nat_gateway(cluster, subnet, address, "<token>")),
        name=name,
        detail="shared by all private clusters of the region",
        hourly_usd=NAT_HOURLY_USD,
    )
    table_id = previewer.shared(
        "route-table", lambda resource: resource.network == vpc and tags.is_private(resource.tags)
    )
    table = previewer.add(
        "route-table",
        table_id,
        ("CreateRouteTable", requests.route_table(cluster, vpc, "<token>", private=True)),
        name=name,
        placeholder="<private route-table>",
    )
    private = _subnet(previewer, cluster, vpc, zone, table, private=True)
    previewer.add(
        "vpc-endpoint",
        previewer.shared("vpc-endpoint", lambda resource: resource.network == vpc),
        ("CreateVpcEndpoint", requests.s3_endpoint(cluster, vpc, table, "<token>")),
        name=name,
        detail="S3 without the NAT gateway",
    )
    if table_id is None:  # the route is made last, once the NAT gateway works
        previewer.call(("CreateRoute", requests.default_route(table, gateway_field(nat, private=True))))
    return private


def _firewall(
    previewer: Previewer, cluster: CloudCluster, offer: Offer, vpc: str, let_in: Sequence[str]
) -> str:
    """Add the cluster's group; of an existing group, the changed rules."""
    group_id = previewer.of_cluster("security-group", lambda resource: resource.network in (vpc, None))
    name = requests.name_of(cluster)
    body = requests.security_group(cluster, vpc)
    group = previewer.add("security-group", group_id, ("CreateSecurityGroup", body), name=name)
    if group_id is None:
        rules = requests.rules_in(cluster, group)
    else:
        new = [cidr for cidr in cluster.ssh_cidrs if cidr not in let_in]
        rules = [requests.ssh_rule(cidr, cluster.ssh_port) for cidr in new]
    if rules:
        previewer.call(("AuthorizeSecurityGroupIngress", {"GroupId": group, "IpPermissions": rules}))
    if group_id is None and offer.facts["efa_cards"]:
        out = [requests.group_rule(group)]
        previewer.call(("AuthorizeSecurityGroupEgress", {"GroupId": group, "IpPermissions": out}))
    old = [cidr for cidr in let_in if group_id is not None and cidr not in cluster.ssh_cidrs]
    if old:
        rules_out = [requests.ssh_rule(cidr, cluster.ssh_port) for cidr in old]
        previewer.call(("RevokeSecurityGroupIngress", {"GroupId": group, "IpPermissions": rules_out}))
    return group
