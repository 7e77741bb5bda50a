"""The Auto Scaling groups of a node group: which machines are there, what came of their launches, when they end."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provision.aws.api import Api
from provision.eks import requests
from provision.eks.lists import whole
from provision.errors import Blocked, CloudError, Denied
from provision.records import CloudCluster
from provision.rented.ends import LATEST


@dataclass(frozen=True, kw_only=True)
class ScalingGroup:
    """What Auto Scaling itself says of a node group's machines. EKS's numbers may be out of date."""

    wanted: int
    coming: tuple[str, ...]
    """Ids of those that are being started."""
    in_service: tuple[str, ...]


NO_SCALING_GROUP = ScalingGroup(wanted=0, coming=(), in_service=())


def scaling_group(api: Api, found: Mapping[str, Any]) -> ScalingGroup:
    """A node group's scaling groups in one; of none, where EKS has not named one yet."""
    known = scaling_groups(found)
    answer = (
        api.call("describe_auto_scaling_groups", service="autoscaling", AutoScalingGroupNames=known)
        if known
        else {"AutoScalingGroups": []}
    )
    groups = answer["AutoScalingGroups"]
    states = {one["InstanceId"]: one["LifecycleState"] for group in groups for one in group["Instances"]}
    return ScalingGroup(
        wanted=sum(group["DesiredCapacity"] for group in groups),
        coming=tuple(name for name, state in states.items() if state.startswith("Pending")),
        in_service=tuple(name for name, state in states.items() if state == "InService"),
    )


def want(api: Api, found: Mapping[str, Any], count: int) -> None:
    """Have the scaling group of a node group want so many machines; EKS's number stays what it was."""
    for name in scaling_groups(found):  # there is one: its machines are of one shape in one zone
        api.call(
            "update_auto_scaling_group",
            service="autoscaling",
            again=True,
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=max(count, 1),
            DesiredCapacity=count,
        )


def terminate(api: Api, machine: str) -> None:
    """Have it end, and its group want one less."""
    try:
        api.call(
            "terminate_instance_in_auto_scaling_group",
            service="autoscaling",
            InstanceId=machine,
            ShouldDecrementDesiredCapacity=True,
        )
    except CloudError as error:
        if error.code != "ValidationError":
            raise
        raise Blocked(str(error)) from error  # it has gone by itself: the next look tells


def surplus(
    there: Collection[str], machines: Sequence[Mapping[str, Any]], count: int, stay: Collection[str]
) -> list[str]:
    """Return the ids of those that are `there` and end where `count` stay. Pure.

    First those that EC2 does not list any more in `machines`, or as ending; then others before those on an address
    in `stay`; then the newest.
    """
    known = {one["InstanceId"]: one for one in machines}

    def worth(one: str) -> tuple[bool, bool]:
        machine = known.get(one, {})
        lives = machine.get("State", {}).get("Name") in ("pending", "running")
        return lives, machine.get("PrivateIpAddress") in stay

    oldest = [one["InstanceId"] for one in sorted(machines, key=lambda one: one["LaunchTime"])]
    newest = sorted(there, key=lambda one: oldest.index(one) if one in known else -1, reverse=True)
    return sorted(newest, key=worth)[: max(0, len(newest) - count)]


def refusals(api: Api, group: Mapping[str, Any]) -> dict[str, str]:
    """What scaling groups say of their latest launches that failed, by the activity's id, newest first."""
    return {
        str(activity["ActivityId"]): activity.get("StatusMessage", "")
        for name in scaling_groups(group)
        for activity in api.call(
            "describe_scaling_activities", service="autoscaling", AutoScalingGroupName=name
        )["Activities"]
        if activity["StatusCode"] == "Failed"
    }


def scaling_groups(group: Mapping[str, Any]) -> list[str]:
    """Names of a node group's Auto Scaling groups."""
    return [one["name"] for one in group.get("resources", {}).get("autoScalingGroups", [])]


def schedule_end(api: Api, cluster: CloudCluster, group: Mapping[str, Any]) -> bool:
    """Schedule the end of the group's machines for the cluster's time, with every computer of ours shut.

    Returns:
        Whether an action was sent: not if the scaling groups have it already.
    """
    try:
        names = unscheduled(api, cluster, group)
    except Denied:  # sending it again changes nothing
        names = scaling_groups(group)
    for name in names:
        action = requests.scheduled_end(cluster, name)
        api.call("put_scheduled_update_group_action", service="autoscaling", again=True, **action)
    return bool(names)


def unscheduled(api: Api, cluster: CloudCluster, group: Mapping[str, Any]) -> list[str]:
    """Return the names of the group's scaling groups that no action empties at the cluster's time.

    An action that has acted is not listed any more:
    https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeScheduledActions.html
    """
    return [
        name
        for name in scaling_groups(group)
        if not any(
            empties(action, cluster)
            for action in whole(
                api,
                "autoscaling",
                "describe_scheduled_actions",
                "ScheduledUpdateGroupActions",
                AutoScalingGroupName=name,
            )
        )
    ]


def empties(action: Mapping[str, Any], cluster: CloudCluster) -> bool:
    """Return whether a scheduled action leaves no machine at the cluster's time. Pure."""
    start = action.get("StartTime")
    if cluster.expires_at is None or not isinstance(start, datetime):
        return False
    late = start.astimezone(UTC) - datetime.fromisoformat(cluster.expires_at)
    return abs(late) <= LATEST and (action.get("MinSize"), action.get("DesiredCapacity")) == (0, 0)
