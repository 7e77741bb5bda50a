"""Subnets of the shared VPC and their routes: to the internet gateway, or the NAT gateway."""

from collections.abc import Callable, Collection, Sequence

from provision.aws import requests
from provision.aws.api import Item
from provision.aws.infrastructure.find_or_create import Listing, ResourceMaker, lowest, named
from provision.aws.requests import EVERYWHERE, Request, tags_in
from provision.errors import Exists
from provision.records import Zone
from provision.rented import tags


def ensure_table(maker: ResourceMaker, vpc: str, tables: Listing, *, private: bool = False) -> str:
    """Find or create the route table of the VPC's public or private subnets."""
    return maker.ensure(
        _kind("route-table", private),
        tables,
        pick=lambda items: lowest(_of_tier(items, vpc, private), "RouteTableId"),
        field="RouteTableId",
        create=lambda token: maker.create(
            "create_route_table",
            requests.route_table(maker.cluster, vpc, token, private=private),
            "RouteTable",
            "RouteTableId",
            again=True,
        ),
        shared=True,
    )


def ensure_subnet(
    maker: ResourceMaker, vpc: str, zone: Zone, subnets: Listing, *, private: bool = False
) -> str:
    """Find or create the zone's public or private subnet. A new one has no route table: see `associate`."""

    def in_zone(items: Sequence[Item]) -> Item | None:
        in_this_zone = [s for s in _of_tier(items, vpc, private) if s["AvailabilityZone"] == zone.name]
        return lowest(in_this_zone, "SubnetId")

    def create(_: str) -> str:
        used_cidrs = [subnet["CidrBlock"] for subnet in subnets.known if subnet["VpcId"] == vpc]
        cidr = requests.subnet_cidr(zone.name, used_cidrs, private=private)
        request = requests.subnet(maker.cluster, vpc, zone.name, cidr, private=private)
        return maker.create("create_subnet", request, "Subnet", "SubnetId")

    return maker.ensure(
        f"{_kind('subnet', private)} {zone.name}",
        subnets,
        pick=in_zone,
        field="SubnetId",
        create=create,
        shared=True,
    )


def _kind(kind: str, private: bool) -> str:
    return f"private {kind}" if private else kind


def _of_tier(items: Sequence[Item], vpc: str, private: bool) -> list[Item]:
    return [item for item in items if item.get("VpcId") == vpc and tags.is_private(tags_in(item)) == private]


def associate(maker: ResourceMaker, subnet: str, table: str, tables: Listing) -> Item | None:
    """Give a subnet without a route table this one. Returns the table that it already had, or `None`.

    A race may have made two tables, and a subnet has one at a time.
    """
    associated = _table_of(tables.known, subnet)
    if associated is not None:
        return associated
    try:
        # A second call gives the same association.
        maker.api.call("associate_route_table", again=True, settle=True, RouteTableId=table, SubnetId=subnet)
    except Exists:
        # Another process was faster, or the list lags.
        associated = maker.wait_for(lambda: _table_of(tables.read(), subnet))
        if associated is None:
            raise
    return associated


def _table_of(tables: Sequence[Item], subnet: str) -> Item | None:
    """Return the table that the subnet is associated with."""
    for table in tables:
        if any(association.get("SubnetId") == subnet for association in table.get("Associations", [])):
            return table
    return None


def leads_to(table: Item, gateways: Collection[str]) -> bool:
    """Return whether the table's default route leads to one of these gateways, and that gateway exists."""
    return any(
        entry.get("DestinationCidrBlock") == EVERYWHERE
        and (entry.get("NatGatewayId") in gateways or entry.get("GatewayId") in gateways)
        and entry.get("State") != "blackhole"
        for entry in table.get("Routes", [])
    )


def route(
    maker: ResourceMaker,
    table: str,
    way: Request,
    known: Sequence[Item],
    *,
    is_good: Callable[[], bool] = lambda: False,
) -> None:
    """Give the table a default route to a gateway. `way`: the result of `requests.gateway_field`.

    `is_good` is called for a default route that came up since `known`: whether it is as good as `way`.
    """
    item = named(known, "RouteTableId", table)
    if item is not None and leads_to(item, list(way.values())):
        return
    request = requests.default_route(table, way)
    try:
        maker.api.call("create_route", again=True, settle=True, **request)
    except Exists:
        if not is_good():
            maker.api.call("replace_route", again=True, settle=True, **request)
