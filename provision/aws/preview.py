"""The requests of a dry run, one line each, made by the functions that make the real ones, and what to know of them.

Ids that the cloud would give stand in <…>. Nothing is asked of it: parts of the shared network that are there
already are shown as well.
"""

from collections.abc import Iterator

from provision.aws import choice, images, requests
from provision.aws.requests import Request, way_out
from provision.catalog import SHAPES
from provision.cloud import CloudCluster, Ground, NewMachine, Offer, Place

NAT_NOTE = (
    "the private network has a NAT gateway, which takes AWS a few minutes to make and costs money by itself: in "
    f"us-east-1 about ${requests.NAT_HOURLY_USD} an hour, $0.045 for each GB that passes through it, and "
    f"${requests.ADDRESS_HOURLY_USD} an hour for its address "
    "(list prices, https://aws.amazon.com/vpc/pricing/; traffic to S3 in the region passes by it). There is one for "
    "all private clusters of the region, and it lives as long as the last of them"
)


def lines(cluster: CloudCluster, offer: Offer, count: int) -> tuple[str, ...]:
    """As `Cloud.preview` says."""
    return tuple(requests.line(operation, request) for operation, request in _calls(cluster, offer, count))


def outline(cluster: CloudCluster, count: int) -> tuple[str, ...]:
    """`lines` and notes without an account: what the catalog does not tell stands in <…>."""
    shape = SHAPES.get(cluster.shape)
    region = cluster.target.region or "<region>"
    offer = Offer(
        shape=cluster.shape,
        gpus=shape.gpus if shape else 0,
        image_id=choice.unknown(cluster),
        image_name="",
        user="ubuntu",
        disk_gb=cluster.disk_gb or images.MIN_DISK_GB,
        places=(Place(zone=f"{region}a"),),
        hourly_usd=None,
        billed_when_stopped=False,
        facts={
            "efa_cards": list(range(shape.efa if shape else 0)),
            "first_card_interfaces": 2,
            "placement_group": bool(shape and shape.placement_group),
            "root_device": "/dev/sda1",
            "other_devices": [],
            "subnet": {"vpc": "<vpc>"},
        },
    )
    return (*lines(cluster, offer, count), *notes(cluster, offer))


def notes(cluster: CloudCluster, offer: Offer) -> tuple[str, ...]:
    """What a person should know before they say yes."""
    nat = NAT_NOTE if requests.is_private(cluster) else None
    return tuple(note for note in (efa_note(cluster, offer), nat) if note)


def efa_note(cluster: CloudCluster, offer: Offer) -> str | None:
    """What a machine with a public address can't have of its type's network."""
    most = len(offer.facts["efa_cards"])
    layout = requests.efa_layout(offer.facts, public=cluster.public_ip)
    used = sum(1 for interface in layout if "InterfaceType" in interface)
    if used >= most:
        return None
    return (
        f"{used} of the {most} EFA interfaces of {offer.shape} will be used: AWS gives a public address only to "
        "a machine with a single interface. With --no-public-ip and a jump host (--bastion) it has all of them."
    )


def _calls(cluster: CloudCluster, offer: Offer, count: int) -> Iterator[tuple[str, Request]]:
    place = offer.places[0]
    ids = {
        "vpc": "<vpc>",
        "subnet": cluster.subnet_id or "<subnet>",
        "security_group": "<security-group>",
        "key": requests.name_of(cluster),
    }
    if cluster.subnet_id is None:
        yield from _network(cluster, place)
        if requests.is_private(cluster):
            yield from _private_network(cluster, place)
            ids["subnet"] = "<private subnet>"
    else:
        ids["vpc"] = offer.facts["subnet"]["vpc"]
    group = ids["security_group"]
    yield "CreateSecurityGroup", requests.security_group(cluster, ids["vpc"])
    rules = requests.rules_in(cluster, group)
    yield "AuthorizeSecurityGroupIngress", {"GroupId": group, "IpPermissions": rules}
    if offer.facts["efa_cards"]:
        out = [requests.group_rule(group)]
        yield "AuthorizeSecurityGroupEgress", {"GroupId": group, "IpPermissions": out}
    yield "ImportKeyPair", requests.key_pair(cluster, "<public key>")
    if offer.facts["placement_group"]:
        placement = requests.placement_group(cluster, place.zone)
        yield "CreatePlacementGroup", placement
        ids["placement_group"] = placement["GroupName"]
    new = [NewMachine(name=f"{cluster.name}-{rank}", rank=rank, user_data="") for rank in range(count)]
    yield "RunInstances", requests.run_instances(cluster, offer, Ground(ids=ids), place, "<launch>", new)


def _network(cluster: CloudCluster, place: Place) -> Iterator[tuple[str, Request]]:
    attachment = {"InternetGatewayId": "<internet-gateway>", "VpcId": "<vpc>"}
    cidr = requests.subnet_cidr(place.zone, ())
    yield "CreateVpc", requests.vpc(cluster)
    yield "CreateInternetGateway", requests.internet_gateway(cluster)
    yield "AttachInternetGateway", attachment
    yield "CreateRouteTable", requests.route_table(cluster, "<vpc>", "<token>")
    yield "CreateRoute", requests.default_route("<route-table>", way_out("<internet-gateway>"))
    yield "CreateSubnet", requests.subnet(cluster, "<vpc>", place.zone, cidr)
    yield "AssociateRouteTable", {"RouteTableId": "<route-table>", "SubnetId": "<subnet>"}


def _private_network(cluster: CloudCluster, place: Place) -> Iterator[tuple[str, Request]]:
    cidr = requests.subnet_cidr(place.zone, (), private=True)
    table = "<private route-table>"
    yield "AllocateAddress", requests.elastic_ip(cluster)
    yield "CreateNatGateway", requests.nat_gateway(cluster, "<subnet>", "<elastic-ip>", "<token>")
    yield "CreateRouteTable", requests.route_table(cluster, "<vpc>", "<token>", private=True)
    yield "CreateSubnet", requests.subnet(cluster, "<vpc>", place.zone, cidr, private=True)
    yield "AssociateRouteTable", {"RouteTableId": table, "SubnetId": "<private subnet>"}
    yield "CreateVpcEndpoint", requests.s3_endpoint(cluster, "<vpc>", table, "<token>")
    yield "CreateRoute", requests.default_route(table, way_out("<nat-gateway>", private=True))
