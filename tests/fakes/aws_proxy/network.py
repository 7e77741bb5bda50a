"""Checks of networks that EC2 makes and moto does not, such as refusing to delete a resource in use."""

import ipaddress
from collections.abc import Callable, Iterator
from typing import Any

from tests.fakes.aws_proxy import endpoints, lookup, nat, wording
from tests.fakes.aws_proxy.errors import ApiError, dependency, invalid_value, missing, not_found
from tests.fakes.aws_proxy.world import World

Params = dict[str, Any]

LARGEST_SUBNET, SMALLEST_SUBNET = 16, 28
"""Bits."""


def _delete_group(world: World, region: str, params: Params) -> None:
    name = params.get("GroupId")
    if name is None:
        if "GroupName" not in params:
            raise missing("groupId or groupName")
        name = lookup.group_named(
            world, region, params["GroupName"], world.moto.backend(region).default_vpc.id
        ).id
    group = lookup.group(world, region, name)
    if group.name == "default":
        raise ApiError(
            "CannotDelete", f'the specified group: "{name}" name: "default" cannot be deleted by a user'
        )
    if _interfaces(world, region, "Groups", name) or any(_referrers(world, region, name)):
        raise dependency(f"resource {name} has a dependent object")


def _interfaces(world: World, region: str, key: str, value: str) -> bool:
    """Return whether an interface is in a group, a subnet or a VPC."""
    for interface in world.of("network-interface", region):
        result = interface.body[key]
        if value in ([group["GroupId"] for group in result] if key == "Groups" else [result]):
            return True
    return False


def _referrers(world: World, region: str, name: str) -> Iterator[str]:
    """Other groups with a rule that names this one."""
    for group in lookup.groups(world, region):
        rules = [*group.ingress_rules, *group.egress_rules]
        if group.id != name and any(rule.source_group.get("GroupId") == name for rule in rules):
            yield group.id


def _delete_subnet(world: World, region: str, params: Params) -> None:
    name = params["SubnetId"]
    lookup.subnet(world, region, name)
    if _interfaces(world, region, "SubnetId", name):
        raise dependency(f"The subnet '{name}' has dependencies and cannot be deleted.")


def _delete_vpc(world: World, region: str, params: Params) -> None:
    name, backend = params["VpcId"], world.moto.backend(region)
    if name not in backend.vpcs:
        raise not_found("vpc", name)
    blockers = [
        *lookup.subnets(world, region, name),
        *endpoints.of_vpc(world, region, name),
        *(
            gateway
            for gateway in backend.internet_gateways.values()
            if gateway.vpc and gateway.vpc.id == name
        ),
        *(
            group
            for group in lookup.groups(world, region)
            if group.vpc_id == name and group.name != "default"
        ),
        *(
            table
            for table in backend.route_tables.values()
            if table.vpc_id == name and not table.main_association_id
        ),
    ]
    if blockers or _interfaces(world, region, "VpcId", name):
        raise dependency(f"The vpc '{name}' has dependencies and cannot be deleted.")


def _create_vpc(world: World, region: str, params: Params) -> None:
    if len(world.moto.backend(region).vpcs) >= world.extra.vpc_limit:
        raise ApiError("VpcLimitExceeded", "The maximum number of VPCs has been reached.")


def _attach_gateway(world: World, region: str, params: Params) -> None:
    gateways = world.moto.backend(region).internet_gateways
    if params["InternetGatewayId"] not in gateways:
        raise not_found("internet-gateway", params["InternetGatewayId"])
    _in_a_vpc(world, region, params)
    for gateway in gateways.values():
        if gateway.vpc and gateway.vpc.id == params["VpcId"] and gateway.id != params["InternetGatewayId"]:
            raise ApiError(
                "InvalidParameterValue",
                f"Network {params['VpcId']} already has an internet gateway attached",
            )


def _detach_gateway(world: World, region: str, params: Params) -> None:
    for interface in world.of("network-interface", region):
        if interface.body["VpcId"] == params["VpcId"] and interface.public_ip:
            raise dependency(
                f"Network {params['VpcId']} has some mapped public address(es). Please unmap those public "
                "address(es) before detaching the gateway."
            )


def _delete_gateway(world: World, region: str, params: Params) -> None:
    name = params["InternetGatewayId"]
    gateway = world.moto.backend(region).internet_gateways.get(name)
    if gateway is None:
        raise not_found("internet-gateway", name)
    if gateway.vpc:
        raise dependency(f"The internetGateway '{name}' has dependencies and cannot be deleted.")


def _delete_route_table(world: World, region: str, params: Params) -> None:
    name = params["RouteTableId"]
    table = world.moto.backend(region).route_tables.get(name)
    if table is None:
        raise not_found("route-table", name)
    if table.associations:
        raise dependency(f"The routeTable '{name}' has dependencies and cannot be deleted.")


def _create_route(world: World, region: str, params: Params) -> None:
    nat.check_route(world, region, params)
    name = params.get("GatewayId", "")
    if not name.startswith("igw-"):
        return
    backend = world.moto.backend(region)
    gateway, table = backend.internet_gateways.get(name), backend.route_tables.get(params["RouteTableId"])
    if gateway is None:
        raise ApiError("InvalidGatewayID.NotFound", f"The gateway ID '{name}' does not exist")
    if table is not None and (gateway.vpc is None or gateway.vpc.id != table.vpc_id):
        raise ApiError(
            "InvalidParameterValue",
            f"route table {table.id} and network gateway {name} belong to different networks",
        )


def _associate_route_table(world: World, region: str, params: Params) -> None:
    name, subnet = params["RouteTableId"], params.get("SubnetId")
    tables = world.moto.backend(region).route_tables
    if name not in tables:
        raise not_found("route-table", name)
    if subnet is None:
        return
    lookup.subnet(world, region, subnet)
    if any(subnet in table._associations.values() for table in tables.values() if table.id != name):
        raise ApiError(
            "Resource.AlreadyAssociated",
            f"the specified association for route table {name} conflicts with an existing association",
        )


def _create_subnet(world: World, region: str, params: Params) -> None:
    _in_a_vpc(world, region, params)
    text = params.get("CidrBlock", "")
    try:
        length = ipaddress.ip_network(text, strict=False).prefixlen
    except ValueError as error:
        raise invalid_value(text, "cidrBlock", "This is not a valid CIDR block.") from error
    if not LARGEST_SUBNET <= length <= SMALLEST_SUBNET:
        raise ApiError("InvalidSubnet.Range", f"The CIDR '{text}' is invalid.")


def _in_a_vpc(world: World, region: str, params: Params) -> None:
    if "VpcId" in params and params["VpcId"] not in world.moto.backend(region).vpcs:
        raise not_found("vpc", params["VpcId"])


def _create_group(world: World, region: str, params: Params) -> None:
    _in_a_vpc(world, region, params)
    wording.check_group(params)


def _change_rules(world: World, region: str, params: Params) -> None:
    if "GroupId" in params:
        lookup.group(world, region, params["GroupId"])
    wording.check_rules(params)


GUARDS: dict[str, Callable[[World, str, Params], None]] = {
    "AssociateRouteTable": _associate_route_table,
    "AttachInternetGateway": _attach_gateway,
    "AuthorizeSecurityGroupEgress": _change_rules,
    "AuthorizeSecurityGroupIngress": _change_rules,
    "CreateRouteTable": _in_a_vpc,
    "CreateSecurityGroup": _create_group,
    "CreateSubnet": _create_subnet,
    "CreateRoute": _create_route,
    "CreateVpc": _create_vpc,
    "DeleteInternetGateway": _delete_gateway,
    "DeleteRouteTable": _delete_route_table,
    "DeleteSecurityGroup": _delete_group,
    "DeleteSubnet": _delete_subnet,
    "DeleteVpc": _delete_vpc,
    "DetachInternetGateway": _detach_gateway,
    "ReplaceRoute": _create_route,
}
"""Checks to run before moto."""


def tidy(world: World, region: str, operation: str, params: Params) -> None:
    """Clean up after moto: deleting a subnet also removes its association with a route table."""
    if operation == "DeleteRouteTable":
        endpoints.table_gone(world, params["RouteTableId"])
    if operation == "DeleteSubnet":
        for table in world.moto.backend(region).route_tables.values():
            ties = table._associations
            for name in [name for name, target in ties.items() if target == params["SubnetId"]]:
                del ties[name]
