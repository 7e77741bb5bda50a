"""Capacity for machines: the region's for a shape in a place, and the tenancy's limits."""

from collections.abc import Iterator

from tests.fakes.oci.account import FAULT_DOMAINS
from tests.fakes.oci.api import Reply, Request, View
from tests.fakes.oci.common import in_compartment
from tests.fakes.oci.errors import invalid, limit_exceeded, not_found, out_of_capacity
from tests.fakes.oci.shapes import SHAPES, Shape
from tests.fakes.oci.store import Cloud, Resource, now

MAX_A_REPORT = 10
PLENTY = 16
"""The available count in a report if capacity is not limited."""


def machines(cloud: Cloud, shape: str, domain: str | None = None, fault: str | None = None) -> int:
    """Count the machines that have not ended."""
    return sum(1 for _ in _machines(cloud, shape, domain, fault))


def _machines(cloud: Cloud, shape: str, domain: str | None, fault: str | None) -> Iterator[Resource]:
    for instance in cloud.where("instance", shape=shape):
        if domain in (None, instance.view["availabilityDomain"]) and (
            fault in (None, instance.view["faultDomain"])
        ):
            yield instance


def check_quota(cloud: Cloud, shape: Shape, domain: str) -> None:
    """Refuse a machine that the tenancy's limits do not allow. Which domain is full is not said."""
    quota, local = cloud.settings.quota_of(shape.name), cloud.settings.place_quota_at(shape.name, domain)
    if (quota is not None and machines(cloud, shape.name) >= quota) or (
        local is not None and machines(cloud, shape.name, domain) >= local
    ):
        raise limit_exceeded(shape.limit)


def choose_fault_domain(cloud: Cloud, shape: Shape, domain: str, asked: str | None) -> str:
    """Return a fault domain with capacity: the requested one, or the emptiest. Raises ApiError if all are full."""
    if room(cloud, shape, domain, None) == 0:
        raise out_of_capacity()
    choices = [
        fault for fault in ([asked] if asked else FAULT_DOMAINS) if room(cloud, shape, domain, fault) != 0
    ]
    if not choices:
        raise out_of_capacity()
    return min(choices, key=lambda fault: machines(cloud, shape.name, domain, fault))


def room(cloud: Cloud, shape: Shape, domain: str, fault: str | None) -> int | None:
    """Return the number of further machines that fit into a place; `None`: not limited."""
    limit = cloud.settings.capacity_at(shape.name, f"{domain}/{fault}" if fault else domain)
    return None if limit is None else max(0, limit - machines(cloud, shape.name, domain, fault))


def report(cloud: Cloud, request: Request) -> Reply:
    """CreateComputeCapacityReport."""
    body = request.body
    in_compartment(cloud, body)
    domain = body["availabilityDomain"]
    if not cloud.account.has_domain(domain):
        raise not_found()
    query = body["shapeAvailabilities"]
    if not 1 <= len(query) <= MAX_A_REPORT:
        raise invalid(f"shapeAvailabilities has {len(query)} entries; 1 to {MAX_A_REPORT} are allowed")
    return Reply(
        body={
            "compartmentId": body["compartmentId"],
            "availabilityDomain": domain,
            "timeCreated": now(),
            "shapeAvailabilities": [_availability(cloud, domain, entry) for entry in query],
        }
    )


def _availability(cloud: Cloud, domain: str, entry: View) -> View:
    shape, fault = SHAPES.get(entry["instanceShape"]), entry.get("faultDomain")
    if fault and fault not in FAULT_DOMAINS:
        raise invalid(f"faultDomain is no fault domain: {fault}")
    shown = {name: value for name, value in entry.items() if value is not None}
    if shape is None or not shape.offered_in(domain):
        return {**shown, "availabilityStatus": "HARDWARE_NOT_SUPPORTED", "availableCount": 0}
    rooms = [
        left for left in (room(cloud, shape, domain, place) for place in {None, fault}) if left is not None
    ]
    left = min(rooms, default=PLENTY)
    status = "AVAILABLE" if left else "OUT_OF_HOST_CAPACITY"
    return {**shown, "availabilityStatus": status, "availableCount": left}
