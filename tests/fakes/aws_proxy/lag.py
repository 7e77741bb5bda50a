"""Hide new resources for a while: lists lack them, and calls by their id answer that the id is unknown.

This covers moto's resources; the proxy's own know when they show.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fakes.aws_proxy import lookup, wire
from tests.fakes.aws_proxy.errors import not_found
from tests.fakes.aws_proxy.world import World

Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A describe call: the path of its items, and their names in requests."""

    kind: str
    items: str
    id: str
    asked: str


LISTINGS = {
    "DescribeVpcs": Listing(kind="vpc", items="Vpcs", id="VpcId", asked="VpcIds"),
    "DescribeSubnets": Listing(kind="subnet", items="Subnets", id="SubnetId", asked="SubnetIds"),
    "DescribeSecurityGroups": Listing(
        kind="security-group", items="SecurityGroups", id="GroupId", asked="GroupIds"
    ),
    "DescribeInternetGateways": Listing(
        kind="internet-gateway", items="InternetGateways", id="InternetGatewayId", asked="InternetGatewayIds"
    ),
    "DescribeRouteTables": Listing(
        kind="route-table", items="RouteTables", id="RouteTableId", asked="RouteTableIds"
    ),
    "DescribeKeyPairs": Listing(kind="key-pair", items="KeyPairs", id="KeyName", asked="KeyNames"),
}

CREATED = {
    "CreateVpc": ("vpc", "Vpc", "VpcId"),
    "CreateSubnet": ("subnet", "Subnet", "SubnetId"),
    "CreateSecurityGroup": ("security-group", "GroupId"),
    "CreateInternetGateway": ("internet-gateway", "InternetGateway", "InternetGatewayId"),
    "CreateRouteTable": ("route-table", "RouteTable", "RouteTableId"),
    "CreateKeyPair": ("key-pair", "KeyName"),
    "ImportKeyPair": ("key-pair", "KeyName"),
}
"""The kind of resource that a call creates, and the place of its name in the response."""


def created(world: World, operation: str, data: bytes) -> None:
    """Record the resource that a call has created."""
    lag_s = world.control.settings.list_lag_s
    if (lag_s <= 0 and world.extra.use_lag_s <= 0) or operation not in CREATED:
        return
    kind, *path = CREATED[operation]
    result: Any = world.moto.result(operation, data)
    for key in path:
        result = result[key]
    world.new_in_moto[result] = world.control.now() + lag_s
    world.note_new(kind, result)


def check_use(world: World, operation: str, params: Params) -> None:
    """Raise ApiError if a call that changes something names a resource too new to be known."""
    if not world.unusable or operation.startswith(("Describe", "Import")):
        return
    now = world.control.now()
    for name in _texts(params):
        kind, until = world.unusable.get(name, ("", 0.0))
        if until > now:
            raise not_found(kind, name)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)


def check(world: World, region: str, operation: str, params: Params) -> None:
    """Raise ApiError if a describe call names a missing resource, or a new one that does not show yet."""
    listing = LISTINGS.get(operation)
    request = params.get(listing.asked, []) if listing else []
    if listing and request:
        known = lookup.names(world, region, listing.kind) - world.hidden_in_moto()
        for name in request:
            if name not in known:
                raise not_found(listing.kind, name)


def without_new(world: World, operation: str, data: bytes) -> bytes:
    """Remove new resources from a describe call's response."""
    listing = LISTINGS.get(operation)
    if not listing or not (hidden := world.hidden_in_moto()):
        return data
    result = world.moto.result(operation, data)
    result[listing.items] = [item for item in result[listing.items] if item[listing.id] not in hidden]
    return wire.result_xml(wire.operation(operation), result)
