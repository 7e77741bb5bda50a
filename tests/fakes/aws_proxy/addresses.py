"""Elastic IP addresses: an instance with several interfaces gets no public address otherwise."""

from typing import Any

from tests.fakes.aws_proxy.errors import ApiError, dry_run, not_found
from tests.fakes.aws_proxy.filters import matching
from tests.fakes.aws_proxy.instances import public_address
from tests.fakes.aws_proxy.interfaces import Interface
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.world import Thing, World, new_id, tags_for

Params = dict[str, Any]

ASSOCIATION = (
    "AssociationId",
    "InstanceId",
    "NetworkInterfaceId",
    "NetworkInterfaceOwnerId",
    "PrivateIpAddress",
)
"""The fields of an address that something has."""


def allocate(world: World, region: str, params: Params) -> dict[str, Any]:
    """AllocateAddress."""
    if len(list(world.of("elastic-ip", region))) >= world.extra.address_limit:
        raise ApiError("AddressLimitExceeded", "The maximum number of addresses has been reached.")
    if params.get("DryRun"):
        raise dry_run()
    address = Thing(
        kind="elastic-ip",
        id=new_id("eipalloc"),
        region=region,
        tags=tags_for(params, "elastic-ip"),
        body={
            "PublicIp": public_address(),
            "Domain": "vpc",
            "NetworkBorderGroup": region,
            "PublicIpv4Pool": "amazon",
        },
    )
    address.body["AllocationId"] = address.id
    world.add(address)
    return address.body


def give(address: Thing, interface: Interface, public_ip: str) -> str:
    """Let an interface have an address. Returns the id of the association."""
    interface.public_ip = public_ip
    interface.allocation_id = address.id
    name = new_id("eipassoc")
    address.body |= {
        "AssociationId": name,
        "NetworkInterfaceId": interface.id,
        "NetworkInterfaceOwnerId": ACCOUNT,
        "InstanceId": interface.instance_id,
        "PrivateIpAddress": interface.body["PrivateIpAddress"],
    }
    return name


def is_taken(world: World, region: str, address: Thing) -> bool:
    """Return whether the address is in use."""
    _all(world, region)
    return "AssociationId" in address.body


def has_gateway(world: World, region: str, vpc_id: str) -> bool:
    gateways = world.moto.backend(region).internet_gateways.values()
    default = world.moto.backend(region).vpcs[vpc_id].is_default
    return default or any(gateway.vpc and gateway.vpc.id == vpc_id for gateway in gateways)


def _refuse_services(world: World, address: Thing) -> None:
    """Refuse to take an address from its NAT gateway, with EC2's error."""
    interface = world.things.get(address.body.get("NetworkInterfaceId", ""))
    if interface is not None and interface.body["RequesterManaged"]:
        raise ApiError("AuthFailure", "You do not have permission to access the specified resource.")


def _dissolve(world: World, address: Thing) -> None:
    interface = world.things.get(address.body["NetworkInterfaceId"])
    if isinstance(interface, Interface):
        interface.public_ip = interface.allocation_id = None
    for key in ASSOCIATION:
        address.body.pop(key, None)


def release(world: World, region: str, params: Params) -> dict[str, Any]:
    """ReleaseAddress."""
    _all(world, region)
    address = world.get("elastic-ip", region, params.get("AllocationId", ""))
    if params.get("DryRun"):
        raise dry_run()
    _refuse_services(world, address)
    if "AssociationId" in address.body:
        raise ApiError("InvalidIPAddress.InUse", f"Address {address.body['PublicIp']} is in use.")
    del world.things[address.id]
    return {}


FILTERS = {
    "allocation-id": "AllocationId",
    "association-id": "AssociationId",
    "domain": "Domain",
    "instance-id": "InstanceId",
    "network-interface-id": "NetworkInterfaceId",
    "private-ip-address": "PrivateIpAddress",
    "public-ip": "PublicIp",
}


def describe(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeAddresses."""
    result = _all(world, region)
    for name in params.get("AllocationIds", []):
        if all(address.id != name for address in result):
            raise not_found("elastic-ip", name)
    expected, public = params.get("AllocationIds"), params.get("PublicIps")
    shown = [
        address.shown()
        for address in result
        if (not expected or address.id in expected) and (not public or address.body["PublicIp"] in public)
    ]
    return {"Addresses": matching(shown, params.get("Filters", []), FILTERS)}


def _all(world: World, region: str) -> list[Thing]:
    """Return all addresses, after releasing the addresses of deleted interfaces."""
    result: list[Thing] = list(world.of("elastic-ip", region))
    for address in result:
        interface = address.body.get("NetworkInterfaceId")
        if interface and interface not in world.things:
            _dissolve(world, address)
    return result
