"""Tags: their limits; change and list the tags of moto's resources and of our own alike."""

from typing import Any

from tests.fakes.aws_proxy.errors import ApiError, dry_run
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.world import World

Params = dict[str, Any]

MOST = 50
LONGEST_KEY = 128
LONGEST_VALUE = 256


TAGGABLE = {
    "AllocateAddress": ("elastic-ip",),
    "AuthorizeSecurityGroupEgress": ("security-group-rule",),
    "AuthorizeSecurityGroupIngress": ("security-group-rule",),
    "CreateInternetGateway": ("internet-gateway",),
    "CreateKeyPair": ("key-pair",),
    "CreateNatGateway": ("natgateway",),
    "CreateNetworkInterface": ("network-interface",),
    "CreatePlacementGroup": ("placement-group",),
    "CreateRouteTable": ("route-table",),
    "CreateSecurityGroup": ("security-group",),
    "CreateSubnet": ("subnet",),
    "CreateVolume": ("volume",),
    "CreateVpc": ("vpc",),
    "CreateVpcEndpoint": ("vpc-endpoint",),
    "ImportKeyPair": ("key-pair",),
    "RunInstances": ("instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu"),
}
"""Kinds of resources that a call can tag."""


def check(operation: str, params: Params) -> None:
    """Raise ApiError for tags that EC2 refuses, anywhere in a call."""
    for entry in params.get("TagSpecifications", []):
        if "ResourceType" not in entry:
            raise ApiError("InvalidParameterValue", "Tag specification resource type must have a value")
        if entry["ResourceType"] not in TAGGABLE.get(operation, entry["ResourceType"]):
            raise ApiError(
                "InvalidParameterValue",
                f"'{entry['ResourceType']}' is not a valid taggable resource type for this operation.",
            )
        if not entry.get("Tags"):
            raise ApiError("InvalidParameterValue", "Tag specification must have at least one tag")
        _check_tags(entry["Tags"])
    kinds = [entry["ResourceType"] for entry in params.get("TagSpecifications", [])]
    if len(set(kinds)) < len(kinds):
        raise ApiError("InvalidParameterValue", "Duplicate tag specification resource type.")
    if params.get("Resources"):
        _check_tags(params.get("Tags", []))


def _check_tags(given: list[dict[str, str]]) -> None:
    keys = [tag.get("Key", "") for tag in given]
    for tag in given:
        key, value = tag.get("Key", ""), tag.get("Value", "")
        if not 1 <= len(key) <= LONGEST_KEY:
            raise ApiError(
                "InvalidParameterValue", f"Tag key '{key}' must have 1 to {LONGEST_KEY} characters."
            )
        if key.lower().startswith("aws:"):
            raise ApiError(
                "InvalidParameterValue", f"Value ( {key} ) for parameter key is invalid. Tag keys starting with "
                "'aws:' are reserved for internal use",
            )  # fmt: skip
        if len(value) > LONGEST_VALUE:
            raise ApiError(
                "InvalidParameterValue", f"Tag value exceeds the maximum length of {LONGEST_VALUE}."
            )
    if len(set(keys)) < len(keys):
        raise ApiError("InvalidParameterValue", "Duplicate tag keys found.")
    if len(keys) > MOST:
        raise ApiError("TagLimitExceeded", f"The maximum number of Tags for a resource is {MOST}.")


def _own(world: World, region: str, names: list[str]) -> list[str]:
    return [name for name in names if name in world.things and world.things[name].region == region]


def create(world: World, region: str, params: Params) -> dict[str, Any]:
    """CreateTags."""
    inputs = {tag["Key"]: tag.get("Value", "") for tag in params["Tags"]}
    local = _own(world, region, params["Resources"])
    if params.get("DryRun"):
        raise dry_run()
    for name in local:
        if len(world.things[name].tags | inputs) > MOST:
            raise ApiError("TagLimitExceeded", f"The maximum number of Tags for a resource is {MOST}.")
    if rest := [name for name in params["Resources"] if name not in local]:
        world.moto.ask(region, "CreateTags", Resources=rest, Tags=params["Tags"])
    for name in local:
        world.things[name].tags |= inputs
    return {}


def delete(world: World, region: str, params: Params) -> dict[str, Any]:
    """DeleteTags: without tags all, without a value whatever the value is."""
    local = _own(world, region, params["Resources"])
    if params.get("DryRun"):
        raise dry_run()
    if rest := [name for name in params["Resources"] if name not in local]:
        inputs = {"Tags": params["Tags"]} if "Tags" in params else {}
        world.moto.ask(region, "DeleteTags", Resources=rest, **inputs)
    for name in local:
        tags = world.things[name].tags
        for tag in params.get("Tags", [{"Key": key} for key in list(tags)]):
            if tag.get("Value", tags.get(tag["Key"])) == tags.get(tag["Key"]):
                tags.pop(tag["Key"], None)
    return {}


FILTERS = {"key": "Key", "resource-id": "ResourceId", "resource-type": "ResourceType", "value": "Value"}


def describe(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeTags."""
    hidden = world.hidden_in_moto()
    result = [
        tag for tag in world.moto.ask(region, "DescribeTags")["Tags"] if tag["ResourceId"] not in hidden
    ]
    for thing in world.things.values():
        if thing.region == region and world.visible(thing):
            result += [
                {"Key": key, "Value": value, "ResourceId": thing.id, "ResourceType": thing.kind}
                for key, value in thing.tags.items()
            ]
    tags = [{"Key": entry["Key"], "Value": entry["Value"]} for entry in result]
    marked = [entry | {"Tags": [tag]} for entry, tag in zip(result, tags, strict=True)]
    passed = matching(marked, params.get("Filters", []), FILTERS)
    shown = [{key: value for key, value in entry.items() if key != "Tags"} for entry in passed]
    items, token = page(shown, params, most=1000)
    return {"Tags": items, "NextToken": token}
