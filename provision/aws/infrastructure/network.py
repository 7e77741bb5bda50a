"""The network: the VPC that all clusters of a region share, and the resources of a cluster in one zone.

AWS takes no token for most of these, so each is found again by its tags. All reads are made at once; changes are made
one after the other.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from inventories.threads import run_all, values
from provision.aws import requests
from provision.aws.api import Item
from provision.aws.infrastructure.find_or_create import Listing, ResourceMaker, lowest, named
from provision.aws.infrastructure.nat import (
    ADDRESS_TAKEN,
    agree,
    ensure_endpoint,
    ensure_nat,
    usable,
    wait_available,
)
from provision.aws.infrastructure.security_group import ensure_group, ensure_key
from provision.aws.infrastructure.subnets import associate, ensure_subnet, ensure_table, leads_to, route
from provision.aws.requests import filters, gateway_field, tagged
from provision.errors import CloudError, Exists
from provision.records import Infrastructure, Offer, Zone
from provision.rented import tags

Lists = dict[str, Listing]
"""AWS's lists by our names of them."""


def prepare(maker: ResourceMaker, offer: Offer, public_key: str | None) -> Infrastructure:
    """Make network, group and key: see `Cloud.prepare`. Without a public key no key pair is made."""
    of_cluster = tagged(tags.CLUSTER_ID, maker.cluster.id)
    shared = tagged(tags.CLUSTER, tags.NETWORK)
    lists = {"groups": maker.listing("describe_security_groups", "SecurityGroups", of_cluster)}
    if public_key is not None:
        lists["keys"] = maker.listing("describe_key_pairs", "KeyPairs", of_cluster, IncludePublicKey=True)
    if maker.cluster.subnet_id is None:
        lists |= {
            "vpcs": maker.listing("describe_vpcs", "Vpcs", shared),
            "gateways": maker.listing("describe_internet_gateways", "InternetGateways", shared),
            "tables": maker.listing("describe_route_tables", "RouteTables", shared),
        }
    _read_all(lists)
    if maker.cluster.subnet_id is None:
        ids = _shared_network(maker, lists)
    else:
        ids = {"vpc": str(offer.facts["subnet"]["vpc"])}
    ids["security_group"] = ensure_group(
        maker, ids["vpc"], lists["groups"], efa=bool(offer.facts["efa_cards"])
    )
    if public_key is not None:
        ids["key"] = ensure_key(maker, public_key, lists["keys"])
    return Infrastructure(ids=ids)


def prepare_zone(
    maker: ResourceMaker, offer: Offer, infrastructure: Infrastructure, zone: Zone
) -> Infrastructure:
    """Make the zone's subnet with its route, and a placement group if the cluster has one."""
    cluster = maker.cluster
    lists: Lists = {}
    grouped = requests.in_placement_group(cluster, offer.facts)
    if grouped:
        usable = [*tagged(tags.CLUSTER_ID, cluster.id), *filters(state=["pending", "available"])]
        lists["groups"] = maker.listing("describe_placement_groups", "PlacementGroups", usable)
    if cluster.subnet_id is None:
        shared = tagged(tags.CLUSTER, tags.NETWORK)
        more = {
            "subnets": maker.listing("describe_subnets", "Subnets", shared),
            "tables": maker.listing("describe_route_tables", "RouteTables", shared),
        }
        if requests.is_private(maker.cluster):
            more["nats"] = maker.listing("describe_nat_gateways", "NatGateways", shared)
            more["endpoints"] = maker.listing("describe_vpc_endpoints", "VpcEndpoints", shared)
        lists |= more
    _read_all(lists)
    ids = dict(infrastructure.ids) | {"subnet": cluster.subnet_id or ""}
    if cluster.subnet_id is None:
        make = _private_subnet if requests.is_private(cluster) else _public_subnet
        zones = (zone, *(other for other in offer.zones if other != zone))
        ids["subnet"] = make(maker, ids, zones, lists)
    if grouped:
        request = requests.placement_group(maker.cluster, zone.name)
        name = str(request["GroupName"])

        def create(_: str) -> str:
            maker.api.call("create_placement_group", again=False, **request)
            return name

        ids["placement_group"] = maker.ensure(
            f"placement-group {zone.name}",
            lists["groups"],
            pick=lambda items: named(items, "GroupName", name),
            field="GroupName",
            create=create,
        )
    return Infrastructure(ids=ids)


def _read_all(lists: Lists) -> None:
    values(run_all(lambda listing: listing.read(), list(lists.values())))


def _public_subnet(maker: ResourceMaker, ids: Mapping[str, str], zones: Sequence[Zone], lists: Lists) -> str:
    """Make the first zone's subnet with its route to the internet gateway."""
    subnet = ensure_subnet(maker, ids["vpc"], zones[0], lists["subnets"])
    had = associate(maker, subnet, ids["route_table"], lists["tables"])
    if had is not None:  # `prepare` has checked the route of the other table
        route(maker, str(had["RouteTableId"]), gateway_field(ids["internet_gateway"]), [had])
    return subnet


def _private_subnet(maker: ResourceMaker, ids: Mapping[str, str], zones: Sequence[Zone], lists: Lists) -> str:
    """Make the first zone's private subnet with its routes to the NAT gateway, and to S3 without it.

    The gateway is in that zone, or in the next zone in which AWS can make it.
    """
    vpc, nats, tables = ids["vpc"], lists["nats"], lists["tables"]
    public_subnets = {zone.name: partial(_public_subnet, maker, ids, [zone], lists) for zone in zones}
    nat, made = ensure_nat(maker, vpc, nats, public_subnets)
    table = ensure_table(maker, vpc, tables, private=True)
    subnet = ensure_subnet(maker, vpc, zones[0], lists["subnets"], private=True)
    had = associate(maker, subnet, table, tables)
    if had is not None:
        table = str(had["RouteTableId"])
    ensure_endpoint(maker, vpc, table, lists["endpoints"])
    # While AWS brings the gateway up, all other resources are made.
    try:
        working = wait_available(maker, nat, vpc, nats)
    except CloudError as error:
        if error.code != ADDRESS_TAKEN:
            raise
        # Another process, which made a VPC of its own, used the same free address: the next read shows it as used.
        maker.say("another NAT gateway took the address at the same time: making one with its own …")
        nats.read()
        nat, made = ensure_nat(maker, vpc, nats, public_subnets)
        working = wait_available(maker, nat, vpc, nats)
    made = made and working == nat
    now = named(tables.read(), "RouteTableId", table)
    nat = agree(maker, working, vpc, now, nats, made=made)

    def leads_out() -> bool:
        current = named(tables.read(), "RouteTableId", table)
        return current is not None and leads_to(current, usable(nats.read(), vpc))

    route(maker, table, gateway_field(nat, private=True), tables.known, is_good=leads_out)
    return subnet


def _shared_network(maker: ResourceMaker, lists: Lists) -> dict[str, str]:
    vpc = maker.ensure(
        "vpc",
        lists["vpcs"],
        pick=partial(_vpc_for, groups=lists["groups"].known),
        field="VpcId",
        create=lambda _: maker.create("create_vpc", requests.vpc(maker.cluster), "Vpc", "VpcId"),
        shared=True,
    )
    gateway = maker.ensure(
        "internet-gateway",
        lists["gateways"],
        pick=partial(_gateway_for, vpc=vpc),
        field="InternetGatewayId",
        create=lambda _: maker.create(
            "create_internet_gateway",
            requests.internet_gateway(maker.cluster),
            "InternetGateway",
            "InternetGatewayId",
        ),
        shared=True,
    )
    gateway = _attach(maker, gateway, vpc, lists["gateways"])
    table = ensure_table(maker, vpc, lists["tables"])
    route(maker, table, gateway_field(gateway), lists["tables"].known)
    return {"vpc": vpc, "internet_gateway": gateway, "route_table": table}


def _vpc_for(items: Sequence[Item], groups: Sequence[Item]) -> Item | None:
    """Return the VPC of the cluster's groups, else the VPC that all commands choose."""
    used_vpcs = {group.get("VpcId") for group in groups}
    return lowest([item for item in items if item["VpcId"] in used_vpcs] or items, "VpcId")


def _attach(maker: ResourceMaker, gateway: str, vpc: str, gateways: Listing) -> str:
    """Attach the gateway. Returns the attached gateway, which may be another process's."""
    item = named(gateways.known, "InternetGatewayId", gateway)
    if item is not None and _is_attached(item, vpc):
        return gateway
    try:
        maker.api.call(
            "attach_internet_gateway", again=True, settle=True, InternetGatewayId=gateway, VpcId=vpc
        )
    except CloudError as error:
        if not isinstance(error, Exists) and error.code != "InvalidParameterValue":
            raise
        # Another process was faster, or the reply to our own call was lost; the list lags either way.
        attached = maker.wait_for(
            lambda: lowest([item for item in gateways.read() if _is_attached(item, vpc)], "InternetGatewayId")
        )
        if attached is None:
            raise
        return str(attached["InternetGatewayId"])
    return gateway


def _is_attached(gateway: Item, vpc: str) -> bool:
    return any(attachment.get("VpcId") == vpc for attachment in gateway.get("Attachments", []))


def _gateway_for(items: Sequence[Item], vpc: str) -> Item | None:
    """Return the gateway that is attached to the VPC, else one that is attached to no VPC."""
    attached = [item for item in items if _is_attached(item, vpc)]
    return lowest(attached or [item for item in items if not item.get("Attachments")], "InternetGatewayId")
