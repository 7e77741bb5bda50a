"""Compute the number of instances of a launch that fit: addresses, quotas, capacity."""

import itertools
from collections import Counter

from tests.fakes.aws_proxy import lookup, shapes
from tests.fakes.aws_proxy.errors import ApiError
from tests.fakes.aws_proxy.instances import Instance
from tests.fakes.aws_proxy.interfaces import no_addresses
from tests.fakes.aws_proxy.launch import LaunchPlan
from tests.fakes.aws_proxy.world import World


def for_launch(world: World, region: str, planned: LaunchPlan) -> int:
    """Return the number of instances to launch, at most the maximum requested. Raises ApiError below the minimum."""
    live = [result for result in world.of("instance", region) if not result.gone]
    return min(
        planned.most,
        _in_subnets(world, region, planned),
        _in_quotas(world, planned, live),
        _in_zone(world, region, planned, live),
    )


def _in_subnets(world: World, region: str, planned: LaunchPlan) -> int:
    rooms = []
    for subnet_id, each in Counter(nic.subnet_id for nic in planned.interfaces).items():
        free = lookup.free_addresses(world, region, subnet_id)
        result = sum(1 for _ in itertools.islice(free, each * planned.most)) // each
        if result < planned.least:
            raise no_addresses(subnet_id)
        rooms.append(result)
    return min(rooms)


def _in_quotas(world: World, planned: LaunchPlan, live: list[Instance]) -> int:
    """Return the number of instances within the quotas, of machines and of vCPUs as EC2 counts them."""
    counted = [result.plan.type for result in live if result.plan.spot == planned.spot]
    code = shapes.quota_code(planned.type, spot=planned.spot)
    each = shapes.vcpus(planned.type)
    limit = world.extra.quotas.get(code, shapes.DEFAULT_QUOTA)
    used = sum(shapes.vcpus(name) for name in counted if shapes.quota_code(name, spot=planned.spot) == code)
    room = int((limit - used) // each)
    machines = world.control.settings.quota_of(planned.type)
    if machines is not None and machines - counted.count(planned.type) < room:
        limit, room = machines * each, machines - counted.count(planned.type)
    if room >= planned.least:
        return room
    if planned.spot:
        raise ApiError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    raise ApiError(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit:g} allows for the "
        "instance bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    )


def _in_zone(world: World, region: str, planned: LaunchPlan, live: list[Instance]) -> int:
    capacity = world.control.settings.capacity_at(planned.type, planned.zone)
    if capacity is None:
        return planned.most
    place = planned.type, planned.zone
    room = capacity - sum((result.plan.type, result.plan.zone) == place for result in live)
    if room >= planned.least:
        return room
    text = "There is no Spot capacity available that matches your request."
    if not planned.spot:
        offered = shapes.offered_zones(world, region, planned.type)
        rest = ", ".join(zone for zone in offered if zone != planned.zone)
        text = (
            f"We currently do not have sufficient {planned.type} capacity in the Availability Zone you "
            f"requested ({planned.zone}). Our system will be working on provisioning additional capacity. You "
            f"can currently get {planned.type} capacity by not specifying an Availability Zone in your request "
            f"or choosing {rest}."
        )
    raise ApiError("InsufficientInstanceCapacity", text, 500)
