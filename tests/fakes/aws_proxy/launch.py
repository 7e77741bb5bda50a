"""Check the parameters of RunInstances against existing resources, as EC2 does before it starts anything."""

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.aws_proxy import images, interface_plan, lookup, shapes, volumes
from tests.fakes.aws_proxy.errors import ApiError, combination, invalid_value, missing, not_found
from tests.fakes.aws_proxy.interface_plan import InterfacePlan
from tests.fakes.aws_proxy.volumes import VolumePlan
from tests.fakes.aws_proxy.world import World

Params = dict[str, Any]

USER_DATA_LIMIT = 16384


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """A launch that nothing speaks against, but for capacity and quotas."""

    image: images.Image
    type: str
    zone: str
    subnet_id: str
    vpc_id: str
    key_name: str | None
    public_key: str | None
    interfaces: tuple[InterfacePlan, ...]
    volumes: tuple[VolumePlan, ...]
    least: int
    most: int
    spot: bool
    user_data: bytes = field(repr=False)


def zone_asked_for(world: World, region: str, params: Params) -> str | None:
    """Return the zone that a request names, directly or by its subnet. Client tokens count for each zone."""
    inputs = [
        params.get("SubnetId"),
        *(entry.get("SubnetId") for entry in params.get("NetworkInterfaces", [])),
    ]
    for name in filter(None, inputs):
        if result := lookup.find_subnet(world, region, name):
            return str(result.availability_zone)
    return params.get("Placement", {}).get("AvailabilityZone")


def plan(world: World, region: str, params: Params) -> LaunchPlan:
    """Check a request and return its plan. Raises ApiError for any error in the request."""
    for absent in ("LaunchTemplate", "IamInstanceProfile", "SecondaryInterfaces", "HibernationOptions"):
        if absent in params:
            raise ApiError("UnsupportedOperation", f"This fake has no {absent}.")
    minimum, maximum = _counts(params)
    image = _image(region, params)
    name = params.get("InstanceType", "m1.small")
    facts = shapes.facts(name)
    subnet = _subnet(world, region, params, name)
    zone = str(subnet.availability_zone)
    _check_zone(world, region, name, zone)
    key = _key(world, region, params)
    _check_placement_group(world, region, params, facts)
    return LaunchPlan(
        image=image,
        type=name,
        zone=zone,
        subnet_id=subnet.id,
        vpc_id=subnet.vpc_id,
        key_name=key.key_name if key else None,
        public_key=key.public_key if key else None,
        interfaces=interface_plan.plan(world, region, params, facts, subnet),
        volumes=volumes.plan(params, image),
        least=minimum,
        most=maximum,
        spot=_is_spot(params),
        user_data=_user_data(params),
    )


def _counts(params: Params) -> tuple[int, int]:
    minimum, maximum = params["MinCount"], params["MaxCount"]
    if minimum < 1:
        raise invalid_value(minimum, "minCount", "Must be greater than or equal to 1.")
    if maximum < minimum:
        raise invalid_value(minimum, "minCount", f"Must be less than or equal to maxCount, {maximum}.")
    return minimum, maximum


def _image(region: str, params: Params) -> images.Image:
    if "ImageId" not in params:
        raise missing("ImageId")
    name = params["ImageId"]
    if not name.startswith("ami-"):
        raise ApiError("InvalidAMIID.Malformed", f'Invalid id: "{name}" (expecting "ami-...")')
    for image in images.of_region(region):
        if image["ImageId"] == name:
            return image
    raise not_found("image", name)


def _subnet(world: World, region: str, params: Params, name: str) -> Any:
    inputs = params.get("NetworkInterfaces", [])
    if inputs and "SubnetId" in params:
        raise combination(
            "Network interfaces and an instance-level subnet ID may not be specified on the same request"
        )
    request = params.get("Placement", {}).get("AvailabilityZone")
    if request is not None and request not in shapes.zones(region):
        raise ApiError("InvalidParameterValue", f"Invalid availability zone: [{request}]")
    subnet_ids = [params["SubnetId"]] if "SubnetId" in params else []
    subnet_ids += [entry["SubnetId"] for entry in inputs if "SubnetId" in entry]
    if not subnet_ids:
        return _default_subnet(world, region, request, name)
    subnet = lookup.subnet(world, region, subnet_ids[0])
    if request not in (None, subnet.availability_zone):
        raise ApiError(
            "InvalidParameterValue",
            f"The availability zone '{request}' of the request and the subnet '{subnet.id}' in "
            f"{subnet.availability_zone} do not match.",
        )
    return subnet


def _default_subnet(world: World, region: str, asked: str | None, name: str) -> Any:
    offered = shapes.offered_zones(world, region, name)
    for zone in [asked] if asked else offered:
        for subnet in world.moto.backend(region).subnets.get(zone, {}).values():
            if subnet.default_for_az:
                return subnet
    raise ApiError("MissingInput", "No subnets found for the default VPC. Please specify a subnet.")


def _check_zone(world: World, region: str, name: str, zone: str) -> None:
    offered = shapes.offered_zones(world, region, name)
    if zone not in offered:
        raise ApiError(
            "Unsupported",
            f"Your requested instance type ({name}) is not supported in your requested Availability Zone "
            f"({zone}). Please retry your request by not specifying an Availability Zone or choosing "
            f"{', '.join(offered)}.",
        )


def _key(world: World, region: str, params: Params) -> Any:
    return lookup.key_pair(world, region, params["KeyName"]) if "KeyName" in params else None


def _check_placement_group(world: World, region: str, params: Params, facts: Any) -> None:
    name = params.get("Placement", {}).get("GroupName")
    if not name:
        return
    group = lookup.placement_group(world, region, name)
    if group.body["Strategy"] not in facts["PlacementGroupInfo"]["SupportedStrategies"]:
        raise combination(
            f"Placement groups of strategy '{group.body['Strategy']}' may not be used with instances of type "
            f"'{facts['InstanceType']}'."
        )


def _is_spot(params: Params) -> bool:
    options = params.get("InstanceMarketOptions", {})
    if options and options.get("MarketType") != "spot":
        raise ApiError("UnsupportedOperation", "This fake has no markets but spot.")
    spot = options.get("SpotOptions", {})
    persistent = spot.get("SpotInstanceType") == "persistent"
    if spot.get("InstanceInterruptionBehavior", "terminate") != "terminate" and not persistent:
        raise combination("stop and hibernate need a persistent Spot request.")
    return bool(options)


def _user_data(params: Params) -> bytes:
    try:
        data = base64.b64decode(params.get("UserData", ""), validate=True)
    except binascii.Error as error:
        raise ApiError("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.") from error
    if len(data) > USER_DATA_LIMIT:
        raise ApiError("InvalidParameterValue", f"User data is limited to {USER_DATA_LIMIT} bytes")
    return data
