"""EBS volumes, created by a launch or by CreateVolume."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes.aws_proxy import shapes
from tests.fakes.aws_proxy.errors import ApiError, combination, dry_run, invalid_value, missing
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.world import Tags, Thing, World, new_id, tags_for, utc_now

Params = dict[str, Any]

WITH_IOPS = ("gp3", "io1", "io2")
LIMITS_GB = {"gp2": (1, 16384), "gp3": (1, 65536), "io1": (4, 16384), "io2": (4, 65536)}
OTHER_LIMITS_GB = (1, 16384)


@dataclass(frozen=True, kw_only=True)
class VolumePlan:
    """A volume that a launch makes."""

    device: str
    size_gb: int
    type: str
    encrypted: bool
    snapshot: str | None
    iops: int | None
    throughput: int | None
    dies_with_instance: bool


def default_key(world: World, region: str, params: Params) -> dict[str, Any]:
    """GetEbsDefaultKmsKeyId."""
    return {"KmsKeyId": world.extra.ebs_key}


def plan(params: Params, image: Mapping[str, Any]) -> tuple[VolumePlan, ...]:
    """Plan the image's volumes, changed by the request's, and the request's own."""
    of_image = {entry["DeviceName"]: entry["Ebs"] for entry in image["BlockDeviceMappings"] if "Ebs" in entry}
    request = {entry["DeviceName"]: entry for entry in params.get("BlockDeviceMappings", [])}
    devices = {**of_image, **{name: {} for name in request}}
    return tuple(
        _plan_one(device, of_image.get(device, {}), request.get(device, {}).get("Ebs", {}))
        for device in devices
        if device in of_image or "Ebs" in request[device]
    )


def _plan_one(device: str, image: Params, asked: Params) -> VolumePlan:
    size, smallest = asked.get("VolumeSize", image.get("VolumeSize")), image.get("VolumeSize", 0)
    snapshot = asked.get("SnapshotId", image.get("SnapshotId"))
    if size is None:
        raise missing("size or snapshotId")
    if size < smallest:
        raise ApiError(
            "InvalidBlockDeviceMapping",
            f"Volume of size {size}GB is smaller than snapshot '{snapshot}', expect size >= {smallest}GB",
        )
    kind = str(asked.get("VolumeType", image.get("VolumeType", "gp2")))
    _check(kind, size, asked)
    return VolumePlan(
        device=device,
        size_gb=size,
        type=kind,
        encrypted=bool(asked.get("Encrypted", image.get("Encrypted", False))),
        snapshot=snapshot,
        iops=asked.get("Iops", 3000 if kind == "gp3" else None),
        throughput=asked.get("Throughput", 125 if kind == "gp3" else None),
        dies_with_instance=bool(asked.get("DeleteOnTermination", image.get("DeleteOnTermination", True))),
    )


def _check(kind: str, size: int, asked: Params) -> None:
    if "Iops" in asked and kind not in WITH_IOPS:
        raise combination(f"The parameter iops is not supported for {kind} volumes.")
    if "Throughput" in asked and kind != "gp3":
        raise combination(f"The parameter throughput is not supported for {kind} volumes.")
    minimum, maximum = LIMITS_GB.get(kind, OTHER_LIMITS_GB)
    if not minimum <= size <= maximum:
        raise invalid_value(size, "volumeSize", f"{kind} volumes have {minimum} to {maximum} GiB.")
    if "KmsKeyId" in asked and not asked.get("Encrypted"):
        raise combination("The parameter KmsKeyId requires the parameter Encrypted to be set.")


def make(world: World, region: str, zone: str, planned: VolumePlan, tags: Tags) -> Thing:
    """Create a detached volume."""
    volume = Thing(
        kind="volume",
        id=new_id("vol"),
        region=region,
        tags=dict(tags),
        body={
            "AvailabilityZone": zone,
            "AvailabilityZoneId": shapes.zones(region).get(zone),
            "Attachments": [],
            "CreateTime": utc_now(),
            "Encrypted": planned.encrypted,
            "Iops": planned.iops,
            "Throughput": planned.throughput,
            "MultiAttachEnabled": False,
            "Size": planned.size_gb,
            "SnapshotId": planned.snapshot or "",
            "State": "available",
            "VolumeType": planned.type,
        },
    )
    volume.body["VolumeId"] = volume.id
    world.add(volume)
    return volume


def attach(volume: Thing, instance_id: str, planned: VolumePlan) -> None:
    """Attach a volume to the instance that it was made for."""
    volume.body["State"] = "in-use"
    volume.body["Attachments"] = [
        {
            "VolumeId": volume.id,
            "InstanceId": instance_id,
            "Device": planned.device,
            "State": "attached",
            "AttachTime": utc_now(),
            "DeleteOnTermination": planned.dies_with_instance,
        }
    ]


def instance_gone(world: World, instance_id: str) -> None:
    """Delete an ended instance's volumes, or detach them."""
    for volume in [thing for thing in world.things.values() if thing.kind == "volume"]:
        for attachment in volume.body["Attachments"]:
            if attachment["InstanceId"] != instance_id:
                continue
            if attachment["DeleteOnTermination"]:
                del world.things[volume.id]
            else:
                volume.body |= {"State": "available", "Attachments": []}


def create(world: World, region: str, params: Params) -> dict[str, Any]:
    """CreateVolume."""
    zone = params.get("AvailabilityZone")
    if zone is None:
        raise missing("availabilityZone")
    if zone not in shapes.zones(region):
        raise ApiError("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
    if "Size" not in params:
        raise missing("size or snapshotId")
    request = {"VolumeSize" if key == "Size" else key: value for key, value in params.items()}
    planned = _plan_one("", {}, request)
    if params.get("DryRun"):
        raise dry_run()
    return make(world, region, zone, planned, tags_for(params, "volume")).shown()


def delete(world: World, region: str, params: Params) -> dict[str, Any]:
    """DeleteVolume."""
    volume = world.get("volume", region, params["VolumeId"])
    if params.get("DryRun"):
        raise dry_run()
    for attachment in volume.body["Attachments"]:
        raise ApiError(
            "VolumeInUse", f"Volume {volume.id} is currently attached to {attachment['InstanceId']}"
        )
    del world.things[volume.id]
    return {}


FILTERS = {
    "attachment.delete-on-termination": "Attachments.DeleteOnTermination",
    "attachment.device": "Attachments.Device",
    "attachment.instance-id": "Attachments.InstanceId",
    "attachment.status": "Attachments.State",
    "availability-zone": "AvailabilityZone",
    "create-time": "CreateTime",
    "encrypted": "Encrypted",
    "size": "Size",
    "snapshot-id": "SnapshotId",
    "status": "State",
    "volume-id": "VolumeId",
    "volume-type": "VolumeType",
}


def describe(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeVolumes."""
    ids = params.get("VolumeIds", [])
    chosen = [world.get("volume", region, name) for name in ids] if ids else world.of("volume", region)
    shown = [volume.shown() for volume in chosen if ids or world.visible(volume)]
    items, token = page(matching(shown, params.get("Filters", []), FILTERS), params, ids="VolumeIds")
    return {"Volumes": items, "NextToken": token}
