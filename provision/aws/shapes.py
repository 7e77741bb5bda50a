"""Instance types: AWS's description, zones, spot prices."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from inventories.errors import InvalidInput
from provision.aws.api import Api
from provision.aws.catalog import last_driver_branch
from provision.aws.requests import filters
from provision.errors import BadCredentials, CloudError, Gone, UnknownShape
from provision.pricing import catalog
from provision.records import CloudCluster

SPOT_PRODUCTS = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
"""AWS's names of plain Linux in the history of spot prices: the second one in accounts from before 2013."""


def describe(api: Api, shape: str) -> Mapping[str, Any]:
    """Return DescribeInstanceTypes' answer. Raises UnknownShape."""
    try:
        types = api.pages("describe_instance_types", "InstanceTypes", InstanceTypes=[shape])
    except CloudError as error:
        if error.code in ("InvalidInstanceType", "InvalidParameterValue") or isinstance(error, Gone):
            raise _unknown(api.region, shape) from error
        raise
    if not types:
        raise _unknown(api.region, shape)
    described: Mapping[str, Any] = types[0]
    return described


def _unknown(region: str, shape: str) -> UnknownShape:
    near = [name for name in catalog.nearest_shapes(shape) if name != shape]
    hint = f" Did you mean {near[0]}?" if near and shape not in catalog.SHAPES else " Try another --region."
    return UnknownShape(
        f"AWS has no instance type '{shape}' in {region}.{hint} `gpuctl shapes` lists shapes."
    )


def gpus(described: Mapping[str, Any]) -> int:
    """Return the number of GPUs."""
    return sum(int(gpu.get("Count", 0)) for gpu in _gpus(described))


def nvidia_gpus(described: Mapping[str, Any]) -> int:
    """Return the number of NVIDIA's GPUs."""
    return sum(int(gpu.get("Count", 0)) for gpu in _gpus(described) if gpu.get("Manufacturer") == "NVIDIA")


def last_driver(described: Mapping[str, Any]) -> str | None:
    """Return the last driver branch that runs the type's GPUs. `None`: the newest does."""
    return last_driver_branch(str(gpu.get("Name")) for gpu in _gpus(described))


def _gpus(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed: list[Mapping[str, Any]] = described.get("GpuInfo", {}).get("Gpus", [])
    return listed


def architecture(described: Mapping[str, Any]) -> str:
    """Return `x86_64` or `arm64`."""
    supported = described.get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    return "arm64" if "arm64" in supported else "x86_64"


def facts(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type's facts for requests, plain JSON."""
    network = described.get("NetworkInfo", {})
    cards = network.get("NetworkCards", [])
    return {
        "efa_cards": efa_cards(network),
        "first_card_interfaces": cards[0].get("MaximumNetworkInterfaces", 1) if cards else 1,
        "placement_group": "cluster"
        in described.get("PlacementGroupInfo", {}).get("SupportedStrategies", []),
    }


def efa_cards(network: Mapping[str, Any]) -> list[int]:
    """Return the indexes of the network cards that have an EFA device, at most one a card."""
    if not network.get("EfaSupported"):
        return []
    limit = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1)
    cards = network.get("NetworkCards") or [{"NetworkCardIndex": 0}]
    able = sorted(
        card["NetworkCardIndex"]
        for card in cards
        if {"efa", "efa-only"} & set(card.get("InterfaceTypes") or ["efa"])
    )
    # With more cards than devices, the first card has none (p6-b300).
    return able[len(able) - limit :] if len(able) > limit else able


def zones(api: Api, shape: str) -> list[str]:
    """Return the zones in which the type is offered."""
    offered = api.pages(
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=filters(instance_type=shape),
    )
    return [entry["Location"] for entry in offered]


def zone_states(api: Api) -> dict[str, str]:
    """Return the state of each zone of the region that the account can use, without local zones."""
    answer = api.call("describe_availability_zones", Filters=filters(zone_type="availability-zone"))
    return {zone["ZoneName"]: zone["State"] for zone in answer["AvailabilityZones"]}


def in_order(offered: Iterable[str], states: Mapping[str, str]) -> list[str]:
    """Return the zones to try: available zones before impaired ones."""
    usable = [zone for zone in offered if states.get(zone) not in (None, "unavailable")]
    return sorted(usable, key=lambda zone: (states[zone] != "available", zone))


def spot_usd(api: Api, shape: str, zones: Iterable[str]) -> float | None:
    """Return the price of a spot machine now, USD an hour, in the dearest of the zones, as any may be used.

    `None`: AWS has no price, or the account may not read it.
    """
    zone_names = set(zones)
    try:
        history = api.pages(
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=[shape],
            ProductDescriptions=list(SPOT_PRODUCTS),
            StartTime=datetime.now(UTC),
        )
    except BadCredentials:
        raise
    except CloudError:
        return None  # the plan shows the highest possible price
    return dearest_now(history, zone_names)


def dearest_now(history: Iterable[Mapping[str, Any]], zones: Collection[str]) -> float | None:
    """Return the highest of the zones' latest prices. `None`: a zone has no price."""
    latest: dict[str, Mapping[str, Any]] = {}
    for entry in history:
        zone = str(entry["AvailabilityZone"])
        if zone not in latest or entry["Timestamp"] > latest[zone]["Timestamp"]:
            latest[zone] = entry
    if not zones or not set(zones) <= set(latest):
        return None
    return max(float(latest[zone]["SpotPrice"]) for zone in zones)


def refuse_unusable(described: Mapping[str, Any], cluster: CloudCluster) -> None:
    """Raise InvalidInput if the type is not offered as requested: on demand, or spot."""
    usage_class = "spot" if cluster.spot else "on-demand"
    classes = described.get("SupportedUsageClasses", [usage_class])
    if usage_class not in classes:
        fix = "Leave --spot away." if cluster.spot else "Choose another shape or --region."
        raise InvalidInput(
            f"AWS has {cluster.shape} in {cluster.target.region} as {', '.join(classes)} only, "
            f"not as {usage_class}. {fix}"
        )
