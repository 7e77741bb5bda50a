"""Machines with GPUs come all in one zone: the first that has them; and they end at their time."""

import boto3
import pytest

from provision.errors import CreateFailed, NoCapacity
from tests.fakes.client import FakeCloud
from tests.fakes.kube.api import KubeApi
from tests.provision.eks.building import User, operations


def zones_of(fake: FakeCloud) -> set[str]:
    return {
        live_instance["place"]
        for live_instance in fake.live_instances()
        if live_instance["shape"] == "g5.12xlarge"
    }


@pytest.mark.slow
def test_end_is_scheduled_before_anything_is_waited_for_long(user: User, fake: FakeCloud) -> None:
    def interrupt(line: str) -> None:
        if "node group" in line and "its status is CREATING" in line:  # the control plane may say it before
            raise KeyboardInterrupt

    fake.settings(launch_s=1200.0)
    plan = user.plan(1, ttl_s=7200.0)
    with pytest.raises(KeyboardInterrupt):
        user.provider.create(plan, user.folder.journal, interrupt)
    assert operations(fake).count("PutScheduledUpdateGroupAction") == 2, "of both groups"


@pytest.mark.slow
def test_refusal_of_weeks_ago_ends_no_group_that_waits_for_a_machine(user: User, fake: FakeCloud) -> None:
    user.up(1)
    (zone,) = zones_of(fake)
    fake.settings(capacity={"g5.12xlarge": {zone: 1}})
    with pytest.raises(NoCapacity):
        user.up(2)
    fake.settings(capacity={})
    (machine,) = [
        live_instance["id"]
        for live_instance in fake.live_instances()
        if live_instance["shape"] == "g5.12xlarge"
    ]
    fake._ask("POST", "interrupt", {"ids": [machine]})
    assert len(user.up(1)) == 1
    assert "DeleteNodegroup" not in operations(fake)


@pytest.mark.slow
def test_machines_in_a_zone_that_is_not_offered_any_more_stay_the_only_ones(
    user: User, fake: FakeCloud
) -> None:
    made = user.up(1)
    fake.settings(capacity={"g5.12xlarge": dict.fromkeys(zones_of(fake), -1)})
    assert user.up(1) == made
    with pytest.raises(NoCapacity, match="is not offered now, and all are to be in one"):
        user.up(2)
    assert (
        len(
            [
                live_instance
                for live_instance in fake.live_instances()
                if live_instance["shape"] == "g5.12xlarge"
            ]
        )
        == 1
    )


@pytest.mark.slow
def test_next_zone_is_taken_where_the_first_has_no_machines(user: User, fake: FakeCloud) -> None:
    fake.settings(capacity={"g5.12xlarge": {"us-east-1a": 0}})
    assert len(user.up(2)) == 2
    (zone,) = zones_of(fake)
    assert zone != "us-east-1a"
    assert any("InsufficientInstanceCapacity" in line for line in user.said)
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_no_zone_with_machines_is_told_with_the_reason_of_each(user: User, fake: FakeCloud) -> None:
    zones = {f"us-east-1{letter}": 0 for letter in "abcdef"}
    fake.settings(capacity={"g5.12xlarge": zones})
    with pytest.raises(NoCapacity, match=r"AWS has not 2 g5.12xlarge together. us-east-1a: .*us-east-1b: "):
        user.up(2)
    assert "DeleteNodegroup" in operations(fake)
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_key_of_disks_that_auto_scaling_may_not_use_is_named(user: User, fake: FakeCloud) -> None:
    reason = "Instance became unhealthy. Termination Reason: Client.InternalError: Client error on launch"
    fake.settings(eks_group_failure=f"AsgInstanceLaunchFailures: {reason}")
    with pytest.raises(CreateFailed, match=r"allow the role AWSServiceRoleForAutoScaling kms:CreateGrant"):
        user.up(1)
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_control_plane_that_fails_is_told_with_its_reason(user: User, fake: FakeCloud) -> None:
    fake.settings(eks_cluster_failure="InsufficientFreeAddresses: no address is free")
    with pytest.raises(CreateFailed, match="InsufficientFreeAddresses: no address is free"):
        user.up(1)
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_machines_end_at_their_time_by_an_action_of_their_groups(user: User, fake: FakeCloud) -> None:
    user.up(1, ttl_s=7200.0)
    eks = boto3.client("eks", region_name="us-east-1")
    (name,) = eks.list_clusters()["clusters"]
    scaling = boto3.client("autoscaling", region_name="us-east-1")
    for group in eks.list_nodegroups(clusterName=name)["nodegroups"]:
        report = eks.describe_nodegroup(clusterName=name, nodegroupName=group)["nodegroup"]
        (scaling_group,) = (item["name"] for item in report["resources"]["autoScalingGroups"])
        (action,) = scaling.describe_scheduled_actions(AutoScalingGroupName=scaling_group)[
            "ScheduledUpdateGroupActions"
        ]
        assert (action["MinSize"], action["DesiredCapacity"]) == (0, 0)
    assert any("reap --expired" in line for line in user.said)
    assert fake


def test_machines_with_efa_have_interfaces_and_a_placement_group(user: User, fake: FakeCloud) -> None:
    plan = user.plan(2, shape="p4d.24xlarge")
    (template,) = (
        request.body["LaunchTemplateData"]
        for request in plan.requests
        if request.operation == "CreateLaunchTemplate" and "gpu-" in request.body["LaunchTemplateName"]
    )
    assert template["NetworkInterfaces"][0]["InterfaceType"] == "efa"
    assert operations(fake) == []
    assert any("1 of the 4 EFA interfaces" in note for note in plan.notes)
    assert any("NCCL goes over TCP" in note for note in plan.notes)
    assert user.plan(2, shape="p4d.24xlarge", image="mine:1", public_ip=False).notes == plan.notes[2:]


@pytest.mark.slow
def test_pods_of_an_image_of_the_user_get_efa(user: User, kube: KubeApi) -> None:
    user.up(1, image="mine:1")
    plugins = {item["metadata"]["name"] for item in kube.objects("daemonsets", "kube-system")}
    assert plugins == {"aws-efa-k8s-device-plugin", "nvidia-device-plugin-daemonset"}
    namespace = user.folder.load().machines[0].id.partition("/")[0]
    (container,) = (
        pod["spec"]["containers"][0]
        for pod in kube.objects("pods", namespace)
        if "worker" in pod["metadata"]["name"]
    )
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": "1"}
    assert {"name": "FI_EFA_USE_HUGE_PAGE", "value": "0"} in container["env"]
    assert user.down() == ()
