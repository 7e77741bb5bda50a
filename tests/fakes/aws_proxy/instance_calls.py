"""The calls on instances that exist: describe, terminate, stop, start, and their attributes."""

import base64
from typing import Any

from tests.fakes.aws_proxy import instances, lookup
from tests.fakes.aws_proxy.errors import ApiError, dry_run, missing, not_found
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.instances import CODES, Instance
from tests.fakes.aws_proxy.run import reservations
from tests.fakes.aws_proxy.world import World

Params = dict[str, Any]

FILTERS = {
    "architecture": "Architecture",
    "availability-zone": "Placement.AvailabilityZone",
    "block-device-mapping.volume-id": "BlockDeviceMappings.Ebs.VolumeId",
    "client-token": "ClientToken",
    "dns-name": "PublicDnsName",
    "image-id": "ImageId",
    "instance-id": "InstanceId",
    "instance-lifecycle": "InstanceLifecycle",
    "instance-state-code": "State.Code",
    "instance-state-name": "State.Name",
    "instance-type": "InstanceType",
    "instance.group-id": "SecurityGroups.GroupId",
    "instance.group-name": "SecurityGroups.GroupName",
    "ip-address": "PublicIpAddress",
    "key-name": "KeyName",
    "launch-index": "AmiLaunchIndex",
    "launch-time": "LaunchTime",
    "metadata-options.http-tokens": "MetadataOptions.HttpTokens",
    "network-interface.group-id": "NetworkInterfaces.Groups.GroupId",
    "network-interface.network-interface-id": "NetworkInterfaces.NetworkInterfaceId",
    "network-interface.subnet-id": "NetworkInterfaces.SubnetId",
    "network-interface.vpc-id": "NetworkInterfaces.VpcId",
    "placement-group-name": "Placement.GroupName",
    "private-dns-name": "PrivateDnsName",
    "private-ip-address": "PrivateIpAddress",
    "reservation-id": "ReservationId",
    "root-device-type": "RootDeviceType",
    "spot-instance-request-id": "SpotInstanceRequestId",
    "state-reason-code": "StateReason.Code",
    "subnet-id": "SubnetId",
    "tenancy": "Placement.Tenancy",
    "vpc-id": "VpcId",
}


def find(world: World, region: str, ids: list[str], *, visible_only: bool = False) -> list[Instance]:
    """Return instances by id. Raises ApiError if one is unknown, or not shown yet."""
    result = [world.things.get(name) for name in ids]
    unknown = [
        name
        for name, thing in zip(ids, result, strict=True)
        if not isinstance(thing, Instance)
        or thing.region != region
        or thing.forgotten
        or (visible_only and not world.visible(thing))
    ]
    for name in unknown:
        if not name.startswith("i-"):
            raise ApiError("InvalidInstanceID.Malformed", f'Invalid id: "{name}"')
    if unknown:
        raise not_found("instance", unknown)
    return [thing for thing in result if isinstance(thing, Instance)]


def _chosen(world: World, region: str, params: Params) -> list[Instance]:
    """Return the named instances, or all that lists show; then apply the filters."""
    if ids := params.get("InstanceIds"):
        result = find(world, region, ids, visible_only=True)
    else:
        result = [entry for entry in world.of("instance", region) if world.visible(entry)]
    if not params.get("Filters"):
        return result
    by_id = {entry.id: entry for entry in result}
    shown = (entry.shown() | {"ReservationId": entry.reservation_id} for entry in result)
    return [by_id[entry["InstanceId"]] for entry in matching(shown, params["Filters"], FILTERS)]


def describe(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeInstances."""
    items, token = page(
        _chosen(world, region, params), params, ids="InstanceIds", most=world.extra.reply_page_size
    )
    return {"Reservations": reservations(items), "NextToken": token}


def terminate(world: World, region: str, params: Params) -> dict[str, Any]:
    """TerminateInstances: all or nothing."""
    result = find(world, region, params["InstanceIds"])
    for instance in result:
        if instance.attributes["DisableApiTermination"] and not instance.gone:
            raise ApiError(
                "OperationNotPermitted",
                f"The instance '{instance.id}' may not be terminated. Modify its 'disableApiTermination' "
                "instance attribute and try again.",
            )
    if params.get("DryRun"):
        raise dry_run()
    before = {instance.id: instance.state for instance in result}
    for instance in result:
        instances.terminate(world, instance)
    return {"TerminatingInstances": _changes(result, before)}


def _changes(found: list[Instance], before: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "InstanceId": instance.id,
            "CurrentState": {"Code": CODES[instance.state], "Name": instance.state},
            "PreviousState": {"Code": CODES[before[instance.id]], "Name": before[instance.id]},
        }
        for instance in found
    ]


def describe_attribute(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeInstanceAttribute, of the user-data."""
    (instance,) = find(world, region, [params["InstanceId"]])
    if params["Attribute"] != "userData":
        raise ApiError("UnsupportedOperation", f"This fake does not describe {params['Attribute']}.")
    data = instance.plan.user_data
    return {
        "InstanceId": instance.id,
        "UserData": {"Value": base64.b64encode(data).decode()} if data else {},
    }


def push_key(world: World, region: str, params: Params) -> dict[str, Any]:
    """SendSSHPublicKey, of EC2 Instance Connect."""
    found = world.things.get(params["InstanceId"])
    if not isinstance(found, Instance) or found.region != region or found.forgotten:
        raise ApiError("EC2InstanceNotFoundException", "The specified instance was not found.")
    if found.state != "running":
        raise ApiError("EC2InstanceStateInvalidException", "The instance is not running.")
    if world.hosts:
        world.hosts.push_key(found.id, params["InstanceOSUser"], params["SSHPublicKey"])
    return {"RequestId": "00000000-0000-0000-0000-000000000000", "Success": True}


CHANGEABLE = ("DisableApiTermination", "InstanceInitiatedShutdownBehavior", "SourceDestCheck")


def modify_attribute(world: World, region: str, params: Params) -> dict[str, Any]:
    """ModifyInstanceAttribute."""
    (instance,) = find(world, region, [params["InstanceId"]])
    changes = {key: value for key, value in params.items() if key not in ("InstanceId", "DryRun")}
    if set(changes) == {"Attribute", "Value"}:
        name = changes["Attribute"][0].upper() + changes["Attribute"][1:]
        text = changes["Value"]
        changes = {name: {"Value": text.lower() == "true" if text.lower() in ("true", "false") else text}}
    if unknown := set(changes) - {*CHANGEABLE, "Groups"}:
        raise ApiError("UnsupportedOperation", f"This fake can't change {', '.join(sorted(unknown))}.")
    if not changes:
        raise missing("attribute")
    if params.get("DryRun"):
        raise dry_run()
    for name in changes.pop("Groups", []):
        lookup.group(world, region, name)
    if groups := params.get("Groups"):
        instance.nics[0].body["Groups"] = [
            {"GroupId": name, "GroupName": lookup.group(world, region, name).name} for name in groups
        ]
    instance.attributes |= {name: value["Value"] for name, value in changes.items()}
    return {}


MOST_CONSOLE = 64 * 1024


def console_output(world: World, region: str, params: Params) -> dict[str, Any]:
    """GetConsoleOutput: nothing as long as the instance does not run, at most the last 64 kB."""
    (instance,) = find(world, region, [params["InstanceId"]])
    if params.get("Latest") and instance.body["Hypervisor"] != "nitro":
        raise ApiError(
            "UnsupportedOperation", "This instance type does not support retrieving the latest console logs."
        )
    text = f"cloud-init: {instance.id} is up\n" if instance.running_at is not None else ""
    if world.hosts:
        text += world.hosts.said(instance.id)
    return {
        "InstanceId": instance.id,
        "Output": base64.b64encode(text.encode()[-MOST_CONSOLE:]).decode(),
        "Timestamp": instance.body["LaunchTime"],
    }
