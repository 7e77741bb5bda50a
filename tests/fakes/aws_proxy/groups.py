"""Placement groups and Spot requests: small things of the proxy's own, for moto has the one not at all."""

from typing import Any

from tests.fakes.aws_proxy import lookup
from tests.fakes.aws_proxy.errors import ApiError, dry_run, missing, not_found
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.world import Thing, World, new_id, tags_for

Params = dict[str, Any]


def create_placement_group(world: World, region: str, params: Params) -> dict[str, Any]:
    """CreatePlacementGroup."""
    name = params.get("GroupName")
    if not name:
        raise missing("groupName")
    if "Strategy" not in params:
        raise missing("strategy")
    if any(group.body["GroupName"] == name for group in world.of("placement-group", region)):
        raise ApiError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    if params.get("DryRun"):
        raise dry_run()
    group = Thing(
        kind="placement-group",
        id=new_id("pg"),
        region=region,
        tags=tags_for(params, "placement-group"),
        body={
            "GroupName": name,
            "State": "available",
            "Strategy": params["Strategy"],
            "PartitionCount": params.get("PartitionCount"),
            "SpreadLevel": params.get("SpreadLevel"),
        },
    )
    group.body["GroupId"] = group.id
    group.body["GroupArn"] = f"arn:aws:ec2:{region}:{ACCOUNT}:placement-group/{name}"
    world.add(group)
    return {"PlacementGroup": group.shown()}


def delete_placement_group(world: World, region: str, params: Params) -> dict[str, Any]:
    """DeletePlacementGroup."""
    group = lookup.placement_group(world, region, params["GroupName"])
    if params.get("DryRun"):
        raise dry_run()
    for instance in world.of("instance", region):
        if not instance.gone and instance.body["Placement"]["GroupName"] == params["GroupName"]:
            raise ApiError(
                "InvalidPlacementGroup.InUse",
                f"The placement group '{params['GroupName']}' is in use and may not be deleted.",
            )
    del world.things[group.id]
    return {}


PLACEMENT_FILTERS = {
    "group-arn": "GroupArn",
    "group-id": "GroupId",
    "group-name": "GroupName",
    "state": "State",
    "strategy": "Strategy",
}


def describe_placement_groups(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribePlacementGroups."""
    result = [group for group in world.of("placement-group", region) if world.visible(group)]
    for name in params.get("GroupNames", []):
        if all(group.body["GroupName"] != name for group in result):
            raise not_found("placement-group", name)
    for name in params.get("GroupIds", []):
        if all(group.id != name for group in result):
            raise not_found("placement-group", name)
    named = {*params.get("GroupNames", []), *params.get("GroupIds", [])}
    shown = [group.shown() for group in result if not named or {group.id, group.body["GroupName"]} & named]
    return {"PlacementGroups": matching(shown, params.get("Filters", []), PLACEMENT_FILTERS)}


SPOT_FILTERS = {
    "instance-id": "InstanceId",
    "launched-availability-zone": "LaunchedAvailabilityZone",
    "spot-instance-request-id": "SpotInstanceRequestId",
    "state": "State",
    "status-code": "Status.Code",
    "type": "Type",
}


def describe_spot(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeSpotInstanceRequests."""
    kind, ids = "spot-instances-request", params.get("SpotInstanceRequestIds", [])
    chosen = [world.get(kind, region, name) for name in ids] if ids else world.of(kind, region)
    shown = [request.shown() for request in chosen if ids or world.visible(request)]
    items, token = page(
        matching(shown, params.get("Filters", []), SPOT_FILTERS), params, ids="SpotInstanceRequestIds"
    )
    return {"SpotInstanceRequests": items, "NextToken": token}


def cancel_spot(world: World, region: str, params: Params) -> dict[str, Any]:
    """CancelSpotInstanceRequests: their instances run on."""
    kind = "spot-instances-request"
    result = [world.get(kind, region, name) for name in params["SpotInstanceRequestIds"]]
    if params.get("DryRun"):
        raise dry_run()
    for request in result:
        if request.body["State"] in ("open", "active"):
            code = "request-canceled-and-instance-running"
            request.body |= {"State": "cancelled", "Status": {"Code": code, "Message": code}}
    return {
        "CancelledSpotInstanceRequests": [
            {"SpotInstanceRequestId": request.id, "State": request.body["State"]} for request in result
        ]
    }
