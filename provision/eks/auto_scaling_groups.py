"""The Auto Scaling groups of a node group: their machines, failed launches, and the scheduled end."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provision.aws.api import Api
from provision.eks import requests
from provision.errors import Blocked, CloudError, Denied
from provision.records import CloudCluster
from provision.rented.ends import LATEST


@dataclass(frozen=True, kw_only=True)
class ScalingGroup:
    """The state of a node group's machines by Auto Scaling. EKS's numbers may be out of date."""

    desired: int
    starting: tuple[str, ...]
    """Ids of the machines that are starting."""
    in_service: tuple[str, ...]


NO_SCALING_GROUP = ScalingGroup(desired=0, starting=(), in_service=())


def scaling_group(api: Api, group: Mapping[str, Any]) -> ScalingGroup:
    """Return a node group's scaling groups as one; empty if EKS has not named any yet."""
    known = scaling_groups(group)
    if not known:
        return NO_SCALING_GROUP
    answer = api.call("describe_auto_scaling_groups", service="autoscaling", AutoScalingGroupNames=known)
    groups = answer["AutoScalingGroups"]
    states = {
        machine["InstanceId"]: machine["LifecycleState"] for group in groups for machine in group["Instances"]
    }
    return ScalingGroup(
        desired=sum(group["DesiredCapacity"] for group in groups),
        starting=tuple(name for name, state in states.items() if state.startswith("Pending")),
        in_service=tuple(name for name, state in states.items() if state == "InService"),
    )


def set_size(api: Api, group: Mapping[str, Any], count: int) -> None:
    """Set the desired size of a node group's scaling group; EKS's own number does not change."""
    for name in scaling_groups(group):  # only one: its machines are of one shape in one zone
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
    """End a machine, and lower its group's desired size by one."""
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
        raise Blocked(str(error)) from error  # it has ended already: the next poll shows it


def surplus(
    ids: Collection[str],
    machines: Sequence[Mapping[str, Any]],
    count: int,
    staying_addresses: Collection[str],
) -> list[str]:
    """Return the ids of the machines to end, so that `count` stay. Pure.

    First machines that EC2 does not list in `machines`, or lists as ending; then machines at other addresses than the
    staying ones; of equal ones the newest.
    """
    known = {machine["InstanceId"]: machine for machine in machines}

    def worth(machine_id: str) -> tuple[bool, bool]:
        machine = known.get(machine_id, {})
        lives = machine.get("State", {}).get("Name") in ("pending", "running")
        return lives, machine.get("PrivateIpAddress") in staying_addresses

    oldest = [machine["InstanceId"] for machine in sorted(machines, key=lambda each: each["LaunchTime"])]
    newest = sorted(ids, key=lambda name: oldest.index(name) if name in known else -1, reverse=True)
    return sorted(newest, key=worth)[: max(0, len(newest) - count)]


def refusals(api: Api, group: Mapping[str, Any]) -> dict[str, str]:
    """Return the reasons of the scaling groups' latest failed launches, by the activity's id, newest first."""
    return {
        str(activity["ActivityId"]): activity.get("StatusMessage", "")
        for name in scaling_groups(group)
        for activity in api.call(
            "describe_scaling_activities", service="autoscaling", AutoScalingGroupName=name
        )["Activities"]
        if activity["StatusCode"] == "Failed"
    }


def scaling_groups(group: Mapping[str, Any]) -> list[str]:
    """Return the names of a node group's Auto Scaling groups."""
    return [each["name"] for each in group.get("resources", {}).get("autoScalingGroups", [])]


def schedule_end(api: Api, cluster: CloudCluster, group: Mapping[str, Any]) -> bool:
    """Schedule the end of the group's machines for the cluster's time, with every computer of ours shut.

    Returns:
        Whether an action was sent: not if the scaling groups have it already.
    """
    try:
        names = unscheduled(api, cluster, group)
    except Denied:  # a second action of that name changes nothing
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
            for action in api.pages(
                "describe_scheduled_actions",
                "ScheduledUpdateGroupActions",
                service="autoscaling",
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
