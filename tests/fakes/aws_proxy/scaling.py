"""Auto Scaling groups of node groups: what came of their launches, and what they will do at some time.

A scheduled action acts by the fake's calendar: the clock of this machine, and what tests have advanced it.
"""

import datetime as dt
from typing import Any

from tests.fakes.aws_proxy import eks_nodes, eks_wire, wire
from tests.fakes.aws_proxy.errors import ApiError
from tests.fakes.aws_proxy.world import Thing, World, utc_now

Params = dict[str, Any]

XMLNS = "http://autoscaling.amazonaws.com/doc/2011-01-01/"


def answer(world: World, region: str, operation: str, form: dict[str, str]) -> bytes:
    """Answer a call, as XML."""
    follow_calendar(world)
    acts = {
        "DeleteScheduledAction": _delete,
        "DescribeAutoScalingGroups": _groups,
        "DescribeScalingActivities": _activities,
        "DescribeScheduledActions": _actions,
        "PutScheduledUpdateGroupAction": _put,
        "TerminateInstanceInAutoScalingGroup": _terminate,
        "UpdateAutoScalingGroup": _update,
    }
    if operation not in acts:
        raise ApiError("InvalidAction", f"This fake has no {operation}.")
    model = eks_wire.service("autoscaling").operation_model(operation)
    result = acts[operation](world, region, wire.parse(model, form))
    parts = [f'<{operation}Response xmlns="{XMLNS}"><{operation}Result>']
    if model.output_shape is not None:
        wire.write_members(parts, model.output_shape, result)
    parts.append(f"</{operation}Result></{operation}Response>")
    return "".join(parts).encode()


def _group(world: World, region: str, name: str) -> Thing:
    for item in world.of(eks_nodes.GROUP, region):
        if eks_nodes.scaling_group_of(item) == name:
            return item
    raise ApiError(
        "ValidationError", f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found"
    )


def _activities(world: World, region: str, params: Params) -> Params:
    thing = _group(world, region, params["AutoScalingGroupName"])
    return {
        "Activities": [
            {
                "ActivityId": activity,
                "AutoScalingGroupName": params["AutoScalingGroupName"],
                "Cause": "a difference between desired and actual capacity",
                "StartTime": utc_now(),
                "StatusCode": "Failed",
                "StatusMessage": text,
            }
            for activity, text in thing.body["_activities"]
        ]
    }


def _terminate(world: World, region: str, params: Params) -> Params:
    """TerminateInstanceInAutoScalingGroup: end a machine and lower the group's desired count; no other form works
    here.
    """
    assert params["ShouldDecrementDesiredCapacity"] is True
    machine = params["InstanceId"]
    for thing in world.of(eks_nodes.GROUP, region):
        if machine in thing.body["_leaving"]:
            raise ApiError("ScalingActivityInProgress", f"Instance {machine} is in Terminating:Wait")
        for item in eks_nodes.stay_of(world, thing):
            if item.id == machine:
                thing.body["_wanted"] -= 1
                eks_nodes.drain(world, thing, item)
                return {}
    raise ApiError(
        "ValidationError", f"Instance Id not found - No managed instance found for instance ID: {machine}"
    )


def _update(world: World, region: str, params: Params) -> Params:
    """Behind EKS's back: its own number stays."""
    if not params["MinSize"] <= params["DesiredCapacity"] <= params["MaxSize"]:
        raise ApiError("ValidationError", "Desired capacity is not between min and max size")
    eks_nodes.want(world, _group(world, region, params["AutoScalingGroupName"]), params["DesiredCapacity"])
    return {}


def _groups(world: World, region: str, params: Params) -> Params:
    result = []
    for name in params["AutoScalingGroupNames"]:
        thing = _group(world, region, name)
        shown = []
        for item in eks_nodes.machines_of(world, thing):
            state = {"pending": "Pending", "running": "InService"}.get(item.state, "Terminating:Proceed")
            state = (
                "Terminating:Wait" if item.id in thing.body["_leaving"] and state == "InService" else state
            )
            shown.append(
                {
                    "InstanceId": item.id,
                    "AvailabilityZone": item.plan.zone,
                    "LifecycleState": state,
                    "HealthStatus": "Healthy",
                    "ProtectedFromScaleIn": False,
                }
            )
        result.append(
            {
                "AutoScalingGroupName": name,
                "MinSize": thing.body["scalingConfig"]["minSize"],
                "MaxSize": thing.body["scalingConfig"]["maxSize"],
                "DesiredCapacity": thing.body["_wanted"],
                "DefaultCooldown": 300,
                "AvailabilityZones": [],
                "HealthCheckType": "EC2",
                "CreatedTime": utc_now(),
                "Instances": shown,
            }
        )
    return {"AutoScalingGroups": result}


def _put(world: World, region: str, params: Params) -> Params:
    """Create or update a scheduled action; fields that an update leaves out do not change."""
    actions = _actions_of(_group(world, region, params["AutoScalingGroupName"]))
    start = _time(params["StartTime"]) if "StartTime" in params else None
    if start is not None and start <= _now(world):
        raise ApiError("ValidationError", "Given start time is in the past")
    name = params["ScheduledActionName"]
    actions[name] = actions.get(name, {}) | params | ({"StartTime": start} if start else {})
    return {}


def _delete(world: World, region: str, params: Params) -> Params:
    actions = _actions_of(_group(world, region, params["AutoScalingGroupName"]))
    if params["ScheduledActionName"] not in actions:
        raise ApiError("ValidationError", "Scheduled action name not found")
    del actions[params["ScheduledActionName"]]
    return {}


def _actions(world: World, region: str, params: Params) -> Params:
    """Return the actions that have not run yet."""
    actions = _actions_of(_group(world, region, params["AutoScalingGroupName"]))
    return {"ScheduledUpdateGroupActions": list(actions.values())}


def follow_calendar(world: World) -> None:
    """Run each action whose time has come."""
    things = [thing for thing in list(world.things.values()) if thing.kind == eks_nodes.GROUP]
    for thing in things:
        actions = _actions_of(thing)
        for name, action in list(actions.items()):
            if action["StartTime"] <= _now(world):
                del actions[name]
                eks_nodes.want(world, thing, action["DesiredCapacity"])


def _actions_of(thing: Thing) -> dict[str, Params]:
    return thing.body.setdefault("_actions", {})


def _now(world: World) -> dt.datetime:
    return dt.datetime.fromtimestamp(world.control.calendar_s(), dt.UTC)


def _time(text: str) -> dt.datetime:
    time = dt.datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=dt.UTC)
