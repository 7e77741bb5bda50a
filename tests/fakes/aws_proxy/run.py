"""RunInstances: client tokens, capacity and quotas, and the resources that a launch creates."""

import json
from dataclasses import dataclass
from typing import Any

from tests.fakes.aws_proxy import instances, interfaces, launch, room, shapes, volumes
from tests.fakes.aws_proxy.errors import ApiError, dry_run
from tests.fakes.aws_proxy.instances import Instance
from tests.fakes.aws_proxy.launch import LaunchPlan
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.world import Thing, World, new_id, tags_for, utc_now

Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Use:
    """The use of a client token. Without a reservation: by a request that had no capacity."""

    fingerprint: str
    reservation_id: str | None


def run_instances(world: World, region: str, params: Params) -> dict[str, Any]:
    """RunInstances."""
    token = params.get("ClientToken")
    # A token counts for each zone where the request names one: elsewhere it launches a second time.
    key = ("RunInstances", region, launch.zone_asked_for(world, region, params) or "", token or "")
    mark = fingerprint(params)
    if token and not params.get("DryRun") and (use := world.tokens.get(key)):
        if use.fingerprint != mark:
            raise mismatch()
        if use.reservation_id:
            return _again(world, region, use.reservation_id)
    planned = launch.plan(world, region, params)
    if params.get("DryRun"):
        raise dry_run()
    try:
        count = room.for_launch(world, region, planned)
    except ApiError as error:
        if token and error.status >= 500:
            world.tokens[key] = Use(fingerprint=mark, reservation_id=None)
        raise
    reservation_id = new_id("r")
    for index in range(count):
        instances.start(world, make_instance(world, region, params, planned, reservation_id, index))
    if token:
        world.tokens[key] = Use(fingerprint=mark, reservation_id=reservation_id)
    return reservations(of_reservation(world, region, reservation_id))[0]


def fingerprint(params: Params) -> str:
    """Return a digest of the parameters that must be equal when a client token is used again."""
    saved = {key: value for key, value in params.items() if key not in ("ClientToken", "DryRun")}
    return json.dumps(saved, sort_keys=True, default=repr)


def mismatch() -> ApiError:
    """Return the error for a token with other parameters."""
    return ApiError(
        "IdempotentParameterMismatch",
        "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
    )


def of_reservation(world: World, region: str, reservation_id: str) -> list[Instance]:
    """Return the instances of a launch."""
    return [result for result in world.of("instance", region) if result.reservation_id == reservation_id]


def _again(world: World, region: str, reservation_id: str) -> dict[str, Any]:
    result = of_reservation(world, region, reservation_id)
    if all(instance.gone for instance in result):
        raise ApiError(
            "IdempotentInstanceTerminated",
            "The client token you have provided is associated with a terminated instance. Please use a "
            "different client token.",
        )
    return reservations(result)[0]


def reservations(found: list[Instance]) -> list[dict[str, Any]]:
    """Group instances into the view of DescribeInstances."""
    grouped: dict[str, list[Instance]] = {}
    for instance in found:
        grouped.setdefault(instance.reservation_id, []).append(instance)
    return [
        {
            "ReservationId": name,
            "OwnerId": ACCOUNT,
            "Groups": [],
            "Instances": [instance.shown() for instance in members],
        }
        for name, members in grouped.items()
    ]


def make_instance(
    world: World, region: str, params: Params, planned: LaunchPlan, reservation_id: str, index: int
) -> Instance:
    """Create an instance of a launch, not started yet."""
    name = new_id("i")
    address = world.hosts.address() if world.hosts else None
    nics = []
    for position, nic_plan in enumerate(planned.interfaces):
        local = address if position == 0 else None
        tags = tags_for(params, "network-interface")
        nic = interfaces.make(world, region, nic_plan, tags, address=local)
        interfaces.attach(nic, name, nic_plan)
        nics.append(nic)
    disks = {}
    for volume_plan in planned.volumes:
        disks[volume_plan.device] = volumes.make(
            world, region, planned.zone, volume_plan, tags_for(params, "volume")
        )
        volumes.attach(disks[volume_plan.device], name, volume_plan)
    instance = Instance(
        kind="instance",
        id=name,
        region=region,
        tags=tags_for(params, "instance"),
        body=_body(params, planned, index) | {"InstanceId": name},
        reservation_id=reservation_id,
        plan=planned,
        request=params,
        nics=sorted(nics, key=lambda nic: (nic.attachment or {})["NetworkCardIndex"]),
        address=address,
        metadata=_metadata(params),
        attributes={
            "DisableApiTermination": params.get("DisableApiTermination", False),
            "InstanceInitiatedShutdownBehavior": params.get("InstanceInitiatedShutdownBehavior", "stop"),
            "SourceDestCheck": True,
            "UserData": params.get("UserData"),
            "EbsOptimized": params.get("EbsOptimized", False),
        },
    )
    instance.body["Placement"]["AvailabilityZoneId"] = shapes.zones(region).get(planned.zone)
    instance.body["BlockDeviceMappings"] = [
        {
            "DeviceName": device,
            "Ebs": {
                "AttachTime": utc_now(),
                "DeleteOnTermination": disk.body["Attachments"][0]["DeleteOnTermination"],
                "Status": "attached",
                "VolumeId": disk.id,
            },
        }
        for device, disk in disks.items()
    ]
    if planned.spot:
        _add_spot_request(world, instance, params)
    return instance


def _body(params: Params, planned: LaunchPlan, index: int) -> dict[str, Any]:
    facts = shapes.facts(planned.type)
    cpus = facts["VCpuInfo"]
    group = params.get("Placement", {}).get("GroupName", "")
    return {
        "AmiLaunchIndex": index,
        "Architecture": planned.image["Architecture"],
        "ClientToken": params.get("ClientToken", ""),
        "CpuOptions": {"CoreCount": cpus["DefaultCores"], "ThreadsPerCore": cpus["DefaultThreadsPerCore"]},
        "EbsOptimized": params.get("EbsOptimized", False),
        "EnaSupport": True,
        "Hypervisor": facts.get("Hypervisor", "xen"),
        "ImageId": planned.image["ImageId"],
        "InstanceLifecycle": "spot" if planned.spot else None,
        "InstanceType": planned.type,
        "KeyName": planned.key_name,
        "LaunchTime": utc_now(),
        "Monitoring": {"State": "enabled" if params.get("Monitoring", {}).get("Enabled") else "disabled"},
        "Placement": {"AvailabilityZone": planned.zone, "GroupName": group, "Tenancy": "default"},
        "ProductCodes": [],
        "RootDeviceName": planned.image["RootDeviceName"],
        "RootDeviceType": "ebs",
        "VirtualizationType": "hvm",
        "NetworkInterfaces": [],
        "SecurityGroups": [],
    }


def _metadata(params: Params) -> dict[str, Any]:
    defaults = {
        "State": "applied",
        "HttpTokens": "optional",
        "HttpPutResponseHopLimit": 1,
        "HttpEndpoint": "enabled",
        "HttpProtocolIpv6": "disabled",
        "InstanceMetadataTags": "disabled",
    }
    inputs: dict[str, Any] = params.get("MetadataOptions", {})
    return defaults | inputs


def _add_spot_request(world: World, instance: Instance, params: Params) -> None:
    options = params["InstanceMarketOptions"].get("SpotOptions", {})
    request = Thing(
        kind="spot-instances-request",
        id=new_id("sir"),
        region=instance.region,
        tags=tags_for(params, "spot-instances-request"),
        body={
            "CreateTime": utc_now(),
            "InstanceId": instance.id,
            "InstanceInterruptionBehavior": options.get("InstanceInterruptionBehavior", "terminate"),
            "LaunchedAvailabilityZone": instance.plan.zone,
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": options.get("MaxPrice"),
            "State": "active",
            "Status": {"Code": "fulfilled", "Message": "Your spot request is fulfilled."},
            "Type": options.get("SpotInstanceType", "one-time"),
        },
    )
    request.body["SpotInstanceRequestId"] = request.id
    instance.body["SpotInstanceRequestId"] = instance.spot_request_id = request.id
    world.add(request)
