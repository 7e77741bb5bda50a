"""Instance types: moto's descriptions, the zones that offer them, and the quota that counts them."""

import functools
from collections.abc import Mapping
from typing import Any

from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
    InstanceTypeBackend,
)

from provision.pricing.catalog import SHAPES
from tests.fakes.aws_proxy.errors import ApiError
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.world import World

QUOTAS = {
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-417A185B": "Running On-Demand P instances",
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-C4BD4855": "All P5 Spot Instance Requests",
    "L-34B43A08": "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
}
"""In vCPUs."""
DEFAULT_QUOTA = 16384.0

_VOLTA = {"p3.2xlarge": (8, 1, 61), "p3.8xlarge": (32, 4, 244), "p3.16xlarge": (64, 8, 488)}
"""vCPUs, GPUs, GiB of memory. moto has no record of them any more."""


def add_volta() -> None:
    """Let moto know the p3 types as well."""
    for name, (vcpus, gpus, memory_gib) in _VOLTA.items():
        if name in INSTANCE_TYPES:
            continue
        gpu = {
            "Name": "V100",
            "Manufacturer": "NVIDIA",
            "Count": gpus,
            "MemoryInfo": {"SizeInMiB": 16384},
        }
        INSTANCE_TYPES[name] = INSTANCE_TYPES["g4dn.xlarge"] | {
            "InstanceType": name,
            "Hypervisor": "xen",
            "VCpuInfo": {"DefaultVCpus": vcpus, "DefaultCores": vcpus // 2, "DefaultThreadsPerCore": 2},
            "MemoryInfo": {"SizeInMiB": memory_gib * 1024},
            "GpuInfo": {"Gpus": [gpu], "TotalGpuMemoryInMiB": gpus * 16384},
        }
        InstanceTypeBackend.instance_types.append(InstanceType(name))
        for by_region in INSTANCE_TYPE_OFFERINGS.values():
            for offerings in by_region.values():
                offerings.extend(
                    entry | {"InstanceType": name}
                    for entry in list(offerings)
                    if entry["InstanceType"] == "g4dn.xlarge"
                )


def zones(region: str) -> dict[str, str]:
    """Names of the region's zones, and their ids."""
    return {zone.name: zone.zone_id for zone in RegionsAndZonesBackend.zones.get(region, [])}


def facts(name: str) -> Mapping[str, Any]:
    """Return the description of an instance type. Raises ApiError if it does not exist."""
    if name not in INSTANCE_TYPES:
        raise ApiError("InvalidParameterValue", f"Invalid value '{name}' for InstanceType.")
    return INSTANCE_TYPES[name]


def vcpus(name: str) -> int:
    """Return the vCPUs that count for quotas."""
    return int(facts(name)["VCpuInfo"]["DefaultVCpus"])


def quota_code(name: str, *, spot: bool) -> str:
    """Return the quota that counts a type."""
    if name.startswith(("g", "vt")):
        return "L-3819A6DF" if spot else "L-DB2E81BA"
    if name.startswith("p5"):
        return "L-C4BD4855" if spot else "L-417A185B"
    if name.startswith("p"):
        return "L-7212CCBC" if spot else "L-417A185B"
    return "L-34B43A08" if spot else "L-1216C47A"


@functools.cache
def _listed(kind: str, region: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return moto's offerings, by type: of `region`, `availability-zone` or `availability-zone-id`."""
    result: dict[str, list[Mapping[str, Any]]] = {}
    for entry in INSTANCE_TYPE_OFFERINGS.get(kind, {}).get(region, []):
        result.setdefault(entry["InstanceType"], []).append(entry)
    return result


def offered_zones(world: World, region: str, name: str) -> list[str]:
    """Zones in which a type is offered, sold out or not. A capacity of -1 is no offer."""
    settings = world.control.settings
    listed = sorted(entry["Location"] for entry in _listed("availability-zone", region).get(name, []))
    return [zone for zone in listed if settings.capacity_at(name, zone) != -1]


FILTERS = {"instance-type": "InstanceType", "location": "Location"}


def describe_offerings(world: World, region: str, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeInstanceTypeOfferings."""
    kind = params.get("LocationType", "region")
    filters = params.get("Filters", [])
    listed = _listed(kind, region)
    request: list[str] = next(
        (entry.get("Values", []) for entry in filters if entry.get("Name") == "instance-type"), []
    )
    # There are thousands of types, and most requests name only one.
    exact = request and not any("*" in value or "?" in value for value in request)
    offerings = [entry for name in (request if exact else listed) for entry in listed.get(name, [])]
    names = {zone_id: zone for zone, zone_id in zones(region).items()}
    settings = world.control.settings

    def is_offered(entry: Mapping[str, Any]) -> bool:
        name, place = entry["InstanceType"], entry["Location"]
        if kind == "region":
            return bool(offered_zones(world, region, name))
        return settings.capacity_at(name, names.get(place, place)) != -1

    shown = [
        {"InstanceType": entry["InstanceType"], "LocationType": kind, "Location": entry["Location"]}
        for entry in matching(offerings, filters, FILTERS)
        if is_offered(entry)
    ]
    items, token = page(shown, params, most=1000)
    return {"InstanceTypeOfferings": items, "NextToken": token}


SPOT_SHARE = {"a": 0.38, "b": 0.41}
"""Of the price on demand, by the zone's letter; 0.4 in others."""


def describe_spot_prices(world: World, region: str, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeSpotPriceHistory: the price of now, and an older one, in each zone that offers the type."""
    shown = [
        {
            "InstanceType": name,
            "ProductDescription": product,
            "SpotPrice": f"{(SHAPES[name].usd_per_hour or 1.0) * SPOT_SHARE.get(zone[-1], 0.4) * factor:.6f}",
            "AvailabilityZone": zone,
            "Timestamp": at,
        }
        for name in params.get("InstanceTypes", [])
        if name in SHAPES
        for product in params.get("ProductDescriptions", ["Linux/UNIX"])
        if product == "Linux/UNIX"
        for zone in offered_zones(world, region, name)
        for at, factor in (("2026-07-01T00:00:00Z", 1.0), ("2026-06-30T00:00:00Z", 1.5))
    ]
    items, token = page(shown, params, most=1000)
    return {"SpotPriceHistory": items, "NextToken": token}
