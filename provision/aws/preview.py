"""The requests of a dry run, made by the functions that make the real ones, and what to know of them.

Ids that AWS would give stand in <…>.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from provision.aws import requests
from provision.aws.catalog import ADDRESS_HOURLY_USD, NAT_HOURLY_USD
from provision.aws.images import choice, lookup
from provision.aws.requests import for_people, way_out
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
    """As `Cloud.preview` says."""
    found = Previewer(cluster, resources)
    zone = offer.zones[0]
    ids = {"key": requests.name_of(cluster)}
    if cluster.subnet_id is None:
        ids["vpc"], ids["subnet"] = _network(found, cluster, zone)
    else:
        ids["vpc"] = offer.facts["subnet"]["vpc"]
        ids["subnet"] = found.add("subnet", cluster.subnet_id, detail="an existing one")
    ids["security_group"] = _firewall(found, cluster, offer, ids["vpc"], let_in)
    found.add(
        "key-pair",
        found.own("key-pair"),
        ("ImportKeyPair", for_people(requests.key_pair(cluster, "<public key>"))),
        name=requests.name_of(cluster),
    )
    if requests.in_placement_group(cluster, offer.facts):
        placement = requests.placement_group(cluster, zone.name)
        name = ids["placement_group"] = placement["GroupName"]
        there = found.own("placement-group", lambda resource: resource.name == name)
        found.add("placement-group", there, ("CreatePlacementGroup", placement), name=name)
    if machines:
        request = requests.run_instances(cluster, offer, Infrastructure(ids=ids), zone, "<launch>", machines)
        found.call(("RunInstances", for_people(request)))
    return found.preview()


def outline(cluster: CloudCluster) -> Offer:
    """An offer without an account: what the catalog does not tell stands in <…>."""
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
    """What a person should know before they say yes."""
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
    """What a machine with a public address can't have of its type's network."""
    most = len(offer.facts["efa_cards"])
    layout = requests.efa_layout(offer.facts, public=cluster.public_ip)
    used = sum(1 for interface in layout if "InterfaceType" in interface)
    if used >= most:
        return None
    return (
        f"{used} of the {most} EFA interfaces of {offer.shape} will be used: AWS gives a public address only to "
        "a machine with a single interface. With --no-public-ip and a bastion (--bastion) it has all of them."
    )


def _network(found: Previewer, cluster: CloudCluster, zone: Zone) -> tuple[str, str]:
    """The ids of the shared VPC and of the zone's public or private subnet."""
    body = requests.vpc(cluster)
    name = requests.NETWORK_NAME
    vpc = found.add("vpc", found.shared("vpc"), ("CreateVpc", body), name=name, detail=requests.VPC_CIDR)
    gateway = found.add(
        "internet-gateway",
        found.shared("internet-gateway"),
        ("CreateInternetGateway", requests.internet_gateway(cluster)),
        ("AttachInternetGateway", {"InternetGatewayId": "<internet-gateway>", "VpcId": vpc}),
        name=name,
    )
    table = found.add(
        "route-table",
        found.shared(
            "route-table", lambda resource: resource.network == vpc and not tags.is_private(resource.tags)
        ),
        ("CreateRouteTable", requests.route_table(cluster, vpc, "<token>")),
        ("CreateRoute", requests.default_route("<route-table>", way_out(gateway))),
        name=name,
    )
    if not requests.is_private(cluster):
        return vpc, _subnet(found, cluster, vpc, zone, table)
    nat = found.shared("nat-gateway", lambda resource: resource.network == vpc)
    # A NAT gateway that is there stands in a subnet of its own already.
    subnet = "<subnet>" if nat else _subnet(found, cluster, vpc, zone, table)
    return vpc, _private_network(found, cluster, vpc, zone, nat, subnet)


def _subnet(
    found: Previewer, cluster: CloudCluster, vpc: str, zone: Zone, table: str, *, private: bool = False
) -> str:
    """The zone's public or private subnet."""
    cidr = requests.subnet_cidr(zone.name, (), private=private)
    placeholder = "<private subnet>" if private else "<subnet>"
    kind = "private " if private else ""

    def in_zone(resource: Resource) -> bool:
        here = resource.network == vpc and resource.name.endswith(f" {zone.name}")
        return here and tags.is_private(resource.tags) == private

    return found.add(
        "subnet",
        found.shared("subnet", in_zone),
        ("CreateSubnet", requests.subnet(cluster, vpc, zone.name, cidr, private=private)),
        ("AssociateRouteTable", {"RouteTableId": table, "SubnetId": placeholder}),
        name=f"{requests.NETWORK_NAME} {kind}{zone.name}",
        detail=cidr,
        placeholder=placeholder,
    )


def _private_network(
    found: Previewer, cluster: CloudCluster, vpc: str, zone: Zone, nat: str | None, subnet: str
) -> str:
    """The private subnet with its way out. `nat`: the NAT gateway that is there."""
    name = f"{requests.NETWORK_NAME} private"
    # An address that no gateway has is in no network.
    address = found.add(
        "elastic-ip",
        found.shared("elastic-ip", lambda resource: resource.network == (None if nat is None else vpc)),
        ("AllocateAddress", requests.elastic_ip(cluster)),
        name=name,
        detail="of the NAT gateway",
        hourly_usd=ADDRESS_HOURLY_USD,
    )
    nat = found.add(
        "nat-gateway",
        nat,
        ("CreateNatGateway", requests.nat_gateway(cluster, subnet, address, "<token>")),
        name=name,
        detail="shared by all private clusters of the region",
        hourly_usd=NAT_HOURLY_USD,
    )
    there = found.shared(
        "route-table", lambda resource: resource.network == vpc and tags.is_private(resource.tags)
    )
    table = found.add(
        "route-table",
        there,
        ("CreateRouteTable", requests.route_table(cluster, vpc, "<token>", private=True)),
        name=name,
        placeholder="<private route-table>",
    )
    private = _subnet(found, cluster, vpc, zone, table, private=True)
    found.add(
        "vpc-endpoint",
        found.shared("vpc-endpoint", lambda resource: resource.network == vpc),
        ("CreateVpcEndpoint", requests.s3_endpoint(cluster, vpc, table, "<token>")),
        name=name,
        detail="S3 without the NAT gateway",
    )
    if there is None:  # the route is made last, once the NAT gateway works
        found.call(("CreateRoute", requests.default_route(table, way_out(nat, private=True))))
    return private


def _firewall(found: Previewer, cluster: CloudCluster, offer: Offer, vpc: str, let_in: Sequence[str]) -> str:
    """The cluster's group; of one that is there, the rules that change."""
    there = found.own("security-group", lambda resource: resource.network in (vpc, None))
    name = requests.name_of(cluster)
    body = requests.security_group(cluster, vpc)
    group = found.add("security-group", there, ("CreateSecurityGroup", body), name=name)
    if there is None:
        rules = requests.rules_in(cluster, group)
    else:
        new = [cidr for cidr in cluster.ssh_cidrs if cidr not in let_in]
        rules = [requests.ssh_rule(cidr, cluster.ssh_port) for cidr in new]
    if rules:
        found.call(("AuthorizeSecurityGroupIngress", {"GroupId": group, "IpPermissions": rules}))
    if there is None and offer.facts["efa_cards"]:
        out = [requests.group_rule(group)]
        found.call(("AuthorizeSecurityGroupEgress", {"GroupId": group, "IpPermissions": out}))
    old = [cidr for cidr in let_in if there is not None and cidr not in cluster.ssh_cidrs]
    if old:
        gone = [requests.ssh_rule(cidr, cluster.ssh_port) for cidr in old]
        found.call(("RevokeSecurityGroupIngress", {"GroupId": group, "IpPermissions": gone}))
    return group
