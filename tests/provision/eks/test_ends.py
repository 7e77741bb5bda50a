"""The end of machines on EKS by actions of scaling groups: read back, missed, and scheduled again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import boto3
import pytest

from provision.eks.auto_scaling_groups import empties
from provision.provider import EndingProvider
from provision.records import EndGuard
from provision.rented.state import CloudState
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import a_cluster
from tests.provision.eks.building import User, operations

TTL_S = 7200.0
ACTION = "gpuctl-expire"
GPU_GROUP = "gpu-us-east-1a"


def guard_of(user: User) -> EndGuard:
    provider = user.provider
    assert isinstance(provider, EndingProvider)
    (guard,) = provider.ends()
    return guard


def scaling_groups() -> dict[str, str]:
    """Names of scaling groups, by node group."""
    eks = boto3.client("eks")
    (name,) = eks.list_clusters()["clusters"]
    groups = {
        group: eks.describe_nodegroup(clusterName=name, nodegroupName=group)["nodegroup"]
        for group in eks.list_nodegroups(clusterName=name)["nodegroups"]
    }
    return {group: view["resources"]["autoScalingGroups"][0]["name"] for group, view in groups.items()}


def remove_action(node_group: str) -> None:
    scaling = boto3.client("autoscaling")
    scaling.delete_scheduled_action(
        AutoScalingGroupName=scaling_groups()[node_group], ScheduledActionName=ACTION
    )


def change_action(node_group: str, *, start: datetime, size: int = 0) -> None:
    boto3.client("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName=scaling_groups()[node_group],
        ScheduledActionName=ACTION,
        StartTime=start,
        MinSize=size,
        DesiredCapacity=size,
    )


def end_of(user: User) -> datetime:
    record = CloudState(user.folder).load()
    assert record.expires_at is not None
    return datetime.fromisoformat(record.expires_at)


def move_end_into_the_past(user: User) -> None:
    files = CloudState(user.folder)
    record = files.load()
    assert record is not None
    files.save(replace(record, expires_at="2026-01-01T00:00:00+00:00"))


def test_actions_of_all_node_groups_are_read_back_and_made_again(user: User, fake: FakeCloud) -> None:
    assert user.provider.ends() == ()
    user.up(1, ttl_s=TTL_S)
    at = end_of(user).isoformat()
    assert guard_of(user) == EndGuard(guard="scaling group", at=at, ends_bill=True, armed=True)

    remove_action("cpu")
    first = "no scheduled action ends the machines of the node group cpu"
    assert (guard_of(user).armed, guard_of(user).problem) == (False, first)
    remove_action(GPU_GROUP)
    both = f"{first}; no scheduled action ends the machines of the node group {GPU_GROUP}"
    assert (guard_of(user).armed, guard_of(user).problem) == (False, both)

    fake.settings(denied=["DescribeScheduledActions"])
    guard = guard_of(user)
    assert guard.armed is None
    assert "autoscaling:DescribeScheduledActions" in guard.problem
    fake.settings(denied=["ListNodegroups"])
    assert guard_of(user).armed is None

    fake.settings(denied=[])
    fake.forget_calls()
    user.up(1)
    assert operations(fake) == ["PutScheduledUpdateGroupAction"] * 2
    assert guard_of(user).armed is True
    assert f"the end of the node group cpu is scheduled for {at}" in user.said


@pytest.mark.slow
def test_actions_are_sent_also_where_they_can_not_be_read(user: User, fake: FakeCloud) -> None:
    fake.settings(denied=["DescribeScheduledActions"])
    user.up(1, ttl_s=TTL_S)
    assert guard_of(user).armed is None
    fake.settings(denied=[])
    assert guard_of(user).armed is True


@pytest.mark.slow
@pytest.mark.parametrize("change", ["later", "earlier", "another size"])
def test_action_that_somebody_changed_is_noticed_and_made_again(user: User, change: str) -> None:
    user.up(1, ttl_s=TTL_S)
    hour = timedelta(hours=1)
    start = end_of(user) + {"later": hour, "earlier": -hour, "another size": timedelta()}[change]
    change_action(GPU_GROUP, start=start, size=1 if change == "another size" else 0)
    guard = guard_of(user)
    assert (guard.armed, GPU_GROUP in guard.problem) == (False, True)
    user.up(1)
    assert guard_of(user).armed is True


@pytest.mark.slow
def test_group_without_machines_has_an_action_as_a_run_may_start_them(user: User, fake: FakeCloud) -> None:
    user.up(None, min_count=0, max_count=1, ttl_s=TTL_S)
    assert guard_of(user).armed is True
    remove_action(GPU_GROUP)
    assert guard_of(user).armed is False
    user.up(None)
    assert guard_of(user).armed is True
    fake.forget_calls()
    user.up(None)
    assert operations(fake) == []


@pytest.mark.slow
def test_actions_end_all_machines_at_the_time(user: User, fake: FakeCloud) -> None:
    user.up(1, ttl_s=TTL_S)
    fake.advance(TTL_S - 120)
    assert len(fake.live_instances()) == 2
    fake.advance(240)
    move_end_into_the_past(user)
    assert guard_of(user).armed is True
    boto3.client("autoscaling").update_auto_scaling_group(
        AutoScalingGroupName=scaling_groups()[GPU_GROUP], MinSize=0, MaxSize=1, DesiredCapacity=1
    )
    guard = guard_of(user)
    assert guard.armed is False
    assert guard.problem == f"the time is over, and the desired size of the node group {GPU_GROUP} is 1"


def test_cluster_without_time_limit_or_control_plane_has_no_guard(user: User, fake: FakeCloud) -> None:
    plan = user.plan(1, ttl_s=TTL_S, spot=True)
    assert any("EKS tries to start another spot machine" in note for note in plan.notes)
    CloudState(user.folder).save(plan.details.cluster)
    assert user.provider.ends() == ()
    CloudState(user.folder).save(replace(plan.details.cluster, expires_at=None))
    fake.settings(denied=["*"])
    assert user.provider.ends() == ()


END = datetime(2026, 12, 4, 17, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, True),
        ({"StartTime": END + timedelta(seconds=60)}, True),
        ({"StartTime": END + timedelta(seconds=61)}, False),
        ({"StartTime": END - timedelta(seconds=61)}, False),
        ({"MinSize": 1}, False),
        ({"DesiredCapacity": 1}, False),
        ({"DesiredCapacity": None}, False),
        ({"StartTime": None}, False),
    ],
)
def test_action_leaves_no_machine_at_the_time(changes: dict[str, object], ends: bool) -> None:
    action = {"StartTime": END, "MinSize": 0, "DesiredCapacity": 0} | changes
    cluster = a_cluster(expires_at="2026-12-04T17:30:00+00:00")
    assert empties(action, cluster) is ends
    assert not empties(action, replace(cluster, expires_at=None))
