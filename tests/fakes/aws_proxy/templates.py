"""Launch templates, each of one version."""

from typing import Any

from tests.fakes.aws_proxy.errors import ApiError, dry_run
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.world import Thing, World, new_id, tags_for, utc_now

Params = dict[str, Any]

KIND = "launch-template"


def create(world: World, region: str, params: Params) -> dict[str, Any]:
    """CreateLaunchTemplate."""
    name = params["LaunchTemplateName"]
    if any(item.body["LaunchTemplateName"] == name for item in world.of(KIND, region)):
        raise ApiError(
            "InvalidLaunchTemplateName.AlreadyExistsException", "Launch template name already in use."
        )
    if params.get("DryRun"):
        raise dry_run()
    thing = Thing(
        kind=KIND,
        id=new_id("lt"),
        region=region,
        tags=tags_for(params, KIND),
        body={
            "LaunchTemplateName": name,
            "CreateTime": utc_now(),
            "DefaultVersionNumber": 1,
            "LatestVersionNumber": 1,
        },
    )
    thing.body["LaunchTemplateId"] = thing.id
    world.add(thing)
    world.template_data[thing.id] = params["LaunchTemplateData"]
    return {"LaunchTemplate": thing.shown()}


def describe(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeLaunchTemplates."""
    shown = [item.shown() for item in world.of(KIND, region) if world.visible(item)]
    filters = {"launch-template-name": "LaunchTemplateName"}
    items, token = page(matching(shown, params.get("Filters", []), filters), params)
    return {"LaunchTemplates": items, "NextToken": token}


def delete(world: World, region: str, params: Params) -> dict[str, Any]:
    """DeleteLaunchTemplate."""
    name = params["LaunchTemplateId"]
    result = world.things.get(name)
    if result is None or (result.kind, result.region) != (KIND, region):
        raise ApiError(
            "InvalidLaunchTemplateId.NotFound",
            f"The specified launch template, with template ID {name}, is gone.",
        )
    del world.things[name]
    return {"LaunchTemplate": result.shown()}
