"""The network interfaces that a launch asks for, checked against its type, its subnets and its groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes.aws_proxy import lookup
from tests.fakes.aws_proxy.errors import ApiError, combination
from tests.fakes.aws_proxy.world import World

Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class InterfacePlan:
    """An interface that a launch makes for each instance."""

    device: int
    card: int
    type: str
    subnet_id: str
    vpc_id: str
    group_ids: tuple[str, ...]
    public: bool
    dies_with_instance: bool
    address: str | None


def plan(
    world: World, region: str, params: Params, facts: Mapping[str, Any], subnet: Any
) -> tuple[InterfacePlan, ...]:
    """Plan the interfaces that a launch requests; without any, one. Raises ApiError for an impossible request."""
    inputs = params.get("NetworkInterfaces", [])
    if inputs:
        for key in ("SecurityGroupIds", "SecurityGroups"):
            if key in params:
                raise combination(
                    "Network interfaces and an instance-level security groups may not be specified on the "
                    "same request"
                )
    request = inputs or [
        {
            "DeviceIndex": 0,
            "SubnetId": subnet.id,
            "Groups": _instance_groups(world, region, params, subnet),
            "PrivateIpAddress": params.get("PrivateIpAddress"),
        }
    ]
    _check_public(request)
    _check_cards(request, facts)
    single = len(request) == 1
    return tuple(plan_one(world, region, entry, subnet, single=single) for entry in request)


def _instance_groups(world: World, region: str, params: Params, subnet: Any) -> list[str]:
    names = params.get("SecurityGroups", [])
    by_name = [lookup.group_named(world, region, name, subnet.vpc_id).id for name in names]
    return [*params.get("SecurityGroupIds", []), *by_name]


def _check_public(asked: list[Params]) -> None:
    public = [entry for entry in asked if entry.get("AssociatePublicIpAddress")]
    if public and len(asked) > 1:
        raise combination(
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple network "
            "interfaces."
        )
    if public and public[0].get("DeviceIndex") != 0:
        raise combination("The associatePublicIPAddress parameter is only supported for device index 0.")


def _check_cards(asked: list[Params], facts: Mapping[str, Any]) -> None:
    name, network = facts["InstanceType"], facts["NetworkInfo"]
    places = [(entry.get("NetworkCardIndex", 0), entry.get("DeviceIndex")) for entry in asked]
    if len(set(places)) < len(places) or any(device is None for _, device in places):
        raise ApiError("InvalidParameterValue", "Each network interface requires a unique device index.")
    if (0, 0) not in places:
        raise ApiError("InvalidParameterValue", "There is no network interface with device index 0.")
    if any(card >= network["MaximumNetworkCards"] for card, _ in places):
        raise combination(f"{name} has {network['MaximumNetworkCards']} network cards.")
    if len(places) > network["MaximumNetworkInterfaces"]:
        raise ApiError(
            "AttachmentLimitExceeded", f"Interface count {len(places)} exceeds the limit for {name}"
        )
    efa = [entry for entry in asked if entry.get("InterfaceType", "interface") in ("efa", "efa-only")]
    if efa and not network.get("EfaSupported"):
        raise ApiError("Unsupported", f"EFA interfaces are not supported on {name}.")
    if efa and len(efa) > network["EfaInfo"]["MaximumEfaInterfaces"]:
        raise ApiError(
            "AttachmentLimitExceeded", f"EFA interface count {len(efa)} exceeds the limit for {name}"
        )


def plan_one(world: World, region: str, entry: Params, subnet: Any, *, single: bool) -> InterfacePlan:
    """Plan one interface. `single`: the launch has no other."""
    if "NetworkInterfaceId" in entry:
        raise ApiError("UnsupportedOperation", "This fake launches with new network interfaces only.")
    local = lookup.subnet(world, region, entry["SubnetId"]) if "SubnetId" in entry else subnet
    if local.availability_zone != subnet.availability_zone:
        raise combination("All network interfaces must be in one Availability Zone.")
    names = entry.get("Groups") or [lookup.group_named(world, region, "default", local.vpc_id).id]
    for name in names:
        if lookup.group(world, region, name).vpc_id != local.vpc_id:
            raise ApiError(
                "InvalidParameter",
                f"Security group {name} and subnet {local.id} belong to different networks.",
            )
    public = entry.get("AssociatePublicIpAddress")
    if public is None:
        # The subnet's default does not hold for an instance with several interfaces.
        public = single and local.map_public_ip_on_launch in (True, "true")
    return InterfacePlan(
        device=entry["DeviceIndex"],
        card=entry.get("NetworkCardIndex", 0),
        type=entry.get("InterfaceType", "interface"),
        subnet_id=local.id,
        vpc_id=local.vpc_id,
        group_ids=tuple(names),
        public=public,
        dies_with_instance=entry.get("DeleteOnTermination", True),
        address=entry.get("PrivateIpAddress"),
    )
