"""The offer of AWS for a cluster, before anything is made: instance type, zones, quota."""

from collections.abc import Mapping

from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import DriverPlan
from inventories.threads import together
from provision.aws import quotas, requests, shapes
from provision.aws.api import Api
from provision.aws.requests import filters
from provision.eks.requests import GPU_AMI
from provision.eks.traits import DISK_GB, IMAGE_WHY, efa_in_pods, efa_notes
from provision.errors import NoCapacity, UnknownShape
from provision.records import CloudCluster, Offer, Zone

NO_CONTROL_PLANE = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
"""Ids of the zones in which EKS puts no control plane."""
MIN_ZONES = 2


def find(api: Api, cluster: CloudCluster) -> Offer:
    """Return the shape and the zones that have it. Raises UnknownShape, InvalidInput for one without NVIDIA GPUs."""
    described, offered, zones = together(
        lambda: shapes.describe(api, cluster.shape),
        lambda: shapes.zones(api, cluster.shape),
        lambda: _zones(api),
    )
    shapes.refuse_unusable(described, cluster)
    gpus = shapes.nvidia_gpus(described)
    if not gpus:
        raise InvalidInput(
            f"{cluster.shape} has no NVIDIA GPU, and provider eks rents machines for those. Choose another shape: "
            "`gpuctl shapes --provider aws` lists them."
        )
    if shapes.architecture(described) != "x86_64":
        raise InvalidInput(
            f"{cluster.shape} is an ARM machine, for which provider eks has no image. Choose another."
        )
    usable = sorted(zone for zone in offered if zone in zones)
    if not usable:
        raise UnknownShape(
            f"AWS offers {cluster.shape} in no zone of {api.region}. Try another --region or shape."
        )
    facts = shapes.facts(described)
    return Offer(
        shape=cluster.shape,
        gpus=gpus,
        image_id=GPU_AMI,
        image_name=GPU_AMI,
        image_why=IMAGE_WHY,
        driver=DriverPlan(source="image"),
        user="ray",
        disk_gb=cluster.disk_gb or DISK_GB,
        zones=tuple(Zone(name=zone) for zone in usable),
        hourly_usd=shapes.spot_usd(api, cluster.shape, usable) if cluster.spot else None,
        facts=facts
        | {
            "control_zones": control_zones(usable, zones),
            "vcpus": int(described["VCpuInfo"]["DefaultVCpus"]),
            "efa_in_pods": efa_in_pods(cluster, facts),
        },
        notes=efa_notes(cluster, facts),
        network_hourly_usd=requests.network_hourly_usd(cluster),
    )


def _zones(api: Api) -> dict[str, str]:
    """Return the zones that the account can use, with their ids, which are the same in every account."""
    answer = api.call("describe_availability_zones", Filters=filters(zone_type="availability-zone"))
    return {
        zone["ZoneName"]: zone["ZoneId"]
        for zone in answer["AvailabilityZones"]
        if zone["State"] != "unavailable"
    }


def control_zones(usable: list[str], zones: Mapping[str, str]) -> list[str]:
    """Return two zones for the control plane, zones of the machines first. Raises InvalidInput for fewer."""
    able = [zone for zone, zone_id in sorted(zones.items()) if zone_id not in NO_CONTROL_PLANE]
    ordered = sorted(able, key=lambda zone: (zone not in usable, zone))
    if len(ordered) < MIN_ZONES:
        raise InvalidInput("EKS needs two zones for its control plane. Try another --region.")
    return ordered[:MIN_ZONES]


def refuse_over_quota(api: Api, cluster: CloudCluster, offer: Offer, count: int) -> None:
    """Raise NoCapacity if the account's quota of the family is too low, even without other machines."""
    quota = quotas.instance_quota(api, cluster.shape, spot=cluster.spot)
    needed = count * int(offer.facts["vcpus"])
    if quota is None or quota.vcpus is None or needed <= quota.vcpus:
        return
    raise NoCapacity(
        f"{count} {cluster.shape} need {needed} vCPUs, and the quota '{quota.name}' ({quota.code}) in {api.region} "
        f"is {quota.vcpus:g}. Nothing was created. Ask for more: {quota.link(api.region)}"
    )
