"""Finding networks, groups and keys among moto's objects, and placement groups among our own."""

import ipaddress
from collections.abc import Iterator
from typing import Any

from tests.fakes.aws_proxy.errors import not_found
from tests.fakes.aws_proxy.world import World


def find_subnet(world: World, region: str, name: str) -> Any:
    """Return moto's subnet, or `None`."""
    by_zone = world.moto.backend(region).subnets.values()
    return next((subnets[name] for subnets in by_zone if name in subnets), None)


def subnet(world: World, region: str, name: str) -> Any:
    """Return moto's subnet. Raises ApiError if it does not exist."""
    result = find_subnet(world, region, name)
    if result is None:
        raise not_found("subnet", name)
    return result


def group(world: World, region: str, name: str) -> Any:
    """Return moto's security group by its id. Raises ApiError if it does not exist."""
    result = world.moto.backend(region).get_security_group_from_id(name)
    if result is None:
        raise not_found("security-group", name)
    return result


def group_named(world: World, region: str, name: str, vpc_id: str) -> Any:
    """Return moto's security group by its name within a VPC. Raises ApiError if it does not exist."""
    for result in world.moto.backend(region).groups.get(vpc_id, {}).values():
        if result.name == name:
            return result
    raise not_found("security-group", name)


def groups(world: World, region: str) -> list[Any]:
    """Return moto's security groups."""
    by_vpc = world.moto.backend(region).groups.values()
    return [result for by_id in by_vpc for result in by_id.values()]


def subnets(world: World, region: str, vpc_id: str) -> list[Any]:
    """moto's subnets of a VPC."""
    by_zone = world.moto.backend(region).subnets.values()
    return [result for by_id in by_zone for result in by_id.values() if result.vpc_id == vpc_id]


def key_pair(world: World, region: str, name: str) -> Any:
    """Return moto's key pair by its name. Raises ApiError if it does not exist."""
    result = world.moto.backend(region).key_pairs.get(name)
    if result is None:
        raise not_found("key-pair", name)
    return result


def placement_group(world: World, region: str, name: str) -> Any:
    """Return a placement group by its name. Raises ApiError if it does not exist."""
    for result in world.of("placement-group", region):
        if result.body["GroupName"] == name:
            return result
    raise not_found("placement-group", name)


def names(world: World, region: str, kind: str) -> set[str]:
    """Return the ids of moto's resources of a kind; key pairs have names."""
    backend = world.moto.backend(region)
    if kind == "subnet":
        return {name for by_id in backend.subnets.values() for name in by_id}
    if kind == "security-group":
        return {result.id for result in groups(world, region)}
    by_name = {
        "vpc": backend.vpcs,
        "internet-gateway": backend.internet_gateways,
        "route-table": backend.route_tables,
        "key-pair": backend.key_pairs,
    }
    return set(by_name[kind])


def free_addresses(world: World, region: str, subnet_id: str) -> Iterator[str]:
    """Iterate over a subnet's free addresses; the first four and the last belong to the cloud."""
    result = subnet(world, region, subnet_id)
    values = {
        address
        for interface in world.of("network-interface", region)
        if interface.body["SubnetId"] == subnet_id
        for address in interface.addresses
    }
    network = ipaddress.ip_network(result.cidr_block, strict=False)
    hosts = (str(network[index]) for index in range(4, network.num_addresses - 1))
    return (address for address in hosts if address not in values)
