"""NAT gateways, which take a while to come and to go, and keep their address, their subnet and their gateway.

They are the proxy's own; moto only learns that they are there, so that routes can lead to them.
"""

from types import SimpleNamespace
from typing import Any

from tests.fakes.aws_proxy import addresses, interfaces, lookup
from tests.fakes.aws_proxy.errors import ApiError, dry_run, invalid_value, missing, not_found
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.interface_plan import InterfacePlan
from tests.fakes.aws_proxy.world import Thing, World, new_id, tags_for, utc_now

Params = dict[str, Any]

KIND = "natgateway"


def create(world: World, region: str, params: Params) -> dict[str, Any]:
    """CreateNatGateway: answers at once, also where the gateway will fail."""
    subnet = lookup.subnet(world, region, params.get("SubnetId", ""))
    if params.get("ConnectivityType", "public") != "public":
        raise invalid_value(params["ConnectivityType"], "ConnectivityType", "This fake has public ones only.")
    if "AllocationId" not in params:
        raise missing("AllocationId")
    address = world.get("elastic-ip", region, params["AllocationId"])
    if subnet.availability_zone in world.extra.nat_unavailable_zones:
        raise ApiError("NotAvailableInZone", f"Nat Gateway is not available in {subnet.availability_zone}.")
    if params.get("DryRun"):
        raise dry_run()
    gateway = Thing(
        kind=KIND,
        id=new_id("nat"),
        region=region,
        tags=tags_for(params, KIND),
        body={
            "ConnectivityType": "public",
            "CreateTime": utc_now(),
            "NatGatewayAddresses": [{"AllocationId": address.id}],
            "State": "pending",
            "SubnetId": subnet.id,
            "VpcId": subnet.vpc_id,
        },
    )
    gateway.body["NatGatewayId"] = gateway.id
    failure = _failure(world, region, gateway, address)
    if failure is None:
        _take(world, region, gateway, address)
    world.add(gateway)
    world.moto.backend(region).nat_gateways[gateway.id] = SimpleNamespace(id=gateway.id)
    world.after(world.extra.nat_ready_s, lambda: _come(gateway, failure))
    return {"NatGateway": gateway.shown(), "ClientToken": params.get("ClientToken")}


def _failure(world: World, region: str, gateway: Thing, address: Thing) -> tuple[str, str] | None:
    """Why a gateway will not come up: code and message."""
    if world.extra.nat_failure:
        code, _, message = world.extra.nat_failure.partition(": ")
        return code, message
    if addresses.is_taken(world, region, address):
        message = f"Elastic IP address [{address.id}] is already associated"
        return "Resource.AlreadyAssociated", message
    if not addresses.has_gateway(world, region, gateway.body["VpcId"]):
        return "Gateway.NotAttached", f"Network {gateway.body['VpcId']} has no Internet gateway attached"
    return None


def _take(world: World, region: str, gateway: Thing, address: Thing) -> None:
    """Create the gateway's interface, and associate its address."""
    plan = InterfacePlan(
        device=0,
        card=0,
        type="nat_gateway",
        subnet_id=gateway.body["SubnetId"],
        vpc_id=gateway.body["VpcId"],
        group_ids=(),
        public=False,
        dies_with_instance=False,
        address=None,
    )
    text = f"Interface for NAT Gateway {gateway.id}"
    interface = interfaces.make(world, region, plan, {}, address=None, text=text)
    interfaces.attach_to_service(interface)
    association = addresses.give(address, interface, address.body["PublicIp"])
    gateway.body["NatGatewayAddresses"] = [
        {
            "AllocationId": address.id,
            "AssociationId": association,
            "IsPrimary": True,
            "NetworkInterfaceId": interface.id,
            "PrivateIp": interface.addresses[0],
            "PublicIp": address.body["PublicIp"],
            "Status": "succeeded",
        }
    ]


def _come(gateway: Thing, failure: tuple[str, str] | None) -> None:
    if gateway.body["State"] != "pending":
        return
    if failure is None:
        gateway.body["State"] = "available"
    else:
        gateway.body |= {"State": "failed", "FailureCode": failure[0], "FailureMessage": failure[1]}


def delete(world: World, region: str, params: Params) -> dict[str, Any]:
    """DeleteNatGateway: the gateway keeps its address and subnet until it is gone."""
    name = params.get("NatGatewayId", "")
    gateway = world.get(KIND, region, name)
    if gateway.body["State"] == "deleted":
        raise not_found(KIND, name)
    if params.get("DryRun"):
        raise dry_run()
    if gateway.body["State"] != "deleting":
        gateway.body["State"] = "deleting"
        world.after(world.extra.nat_gone_s, lambda: _go(world, region, gateway))
    return {"NatGatewayId": name}


def _go(world: World, region: str, gateway: Thing) -> None:
    gateway.body |= {"State": "deleted", "DeleteTime": utc_now()}
    world.moto.backend(region).nat_gateways.pop(gateway.id, None)
    for address in gateway.body["NatGatewayAddresses"]:
        interfaces.drop(world, address.get("NetworkInterfaceId"))
    world.after(world.extra.forget_s, lambda: setattr(gateway, "forgotten", True))


FILTERS = {
    "nat-gateway-id": "NatGatewayId",
    "state": "State",
    "subnet-id": "SubnetId",
    "vpc-id": "VpcId",
}


def describe(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeNatGateways: also deleted ones, for an hour."""
    ids = params.get("NatGatewayIds", [])
    chosen = [world.get(KIND, region, name) for name in ids] if ids else world.of(KIND, region)
    shown = [gateway.shown() for gateway in chosen if ids or world.visible(gateway)]
    items, token = page(matching(shown, params.get("Filter", []), FILTERS), params)
    return {"NatGateways": items, "NextToken": token}


def check_route(world: World, region: str, params: Params) -> None:
    """Raise ApiError if a route is to lead to a missing gateway."""
    name = params.get("NatGatewayId")
    if name is None:
        return
    gateway = world.things.get(name)
    if gateway is None or gateway.region != region or gateway.body["State"] in ("deleted", "failed"):
        raise not_found("nat-gateway-of-a-route", name)


def mark_blackholes(world: World, found: dict[str, Any]) -> None:
    """Mark routes to deleted NAT gateways as blackholes, which moto does not do."""
    for table in found["RouteTables"]:
        for route in table["Routes"]:
            gateway = world.things.get(route.get("NatGatewayId", ""))
            if gateway is not None and gateway.body["State"] in ("deleted", "failed"):
                route["State"] = "blackhole"
