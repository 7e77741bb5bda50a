"""Test the machines of the AWS back end against a fake EC2 over HTTP: launches, terminations, account checks."""

import threading
from pathlib import Path
from typing import Any

import boto3
import pytest

from inventories.errors import InvalidInput
from inventories.threads import run_all
from provision import errors
from provision.aws import credentials, requests
from provision.aws.api import Api
from provision.aws.cloud import AwsCloud, connect
from provision.records import NewMachine, Resource, Target, Zone
from provision.rented.interface import Cloud
from provision.waiting import SystemClock
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import FastClock, User, a_cluster, operations, running

# Launches


def test_launch_creates_tagged_machines_and_is_idempotent(user: User, fake: FakeCloud) -> None:
    ids = user.launch(a_cluster(spot=True), 3)
    machines = running(user, 3)
    assert [m.id for m in sorted(machines, key=lambda m: m.rank or 0)] == list(ids)
    assert sorted(machine.rank or 0 for machine in machines) == [0, 1, 2]
    assert all(m.public_ip and m.private_ip and m.tags["gpuctl-launch"] == "t" * 32 for m in machines)
    assert {m.zone for m in machines} == {Zone(name="us-east-1a")}
    ec2 = boto3.client("ec2")
    ours: Any = [{"Name": "tag-key", "Values": ["gpuctl"]}]
    volumes = ec2.describe_volumes(Filters=ours)["Volumes"]
    assert [(v["Encrypted"], v["VolumeType"], v["Size"]) for v in volumes] == [(True, "gp3", 200)] * 3
    assert len(ec2.describe_network_interfaces(Filters=ours)["NetworkInterfaces"]) == 3
    assert user.launch(a_cluster(spot=True), 3) == ids
    assert fake.state()["most_instances"] == 3


def test_launch_delivered_twice_creates_machines_once(user: User, fake: FakeCloud) -> None:
    fake.fault(operation="RunInstances", kind="duplicate")
    assert len(user.launch(a_cluster())) == 2
    assert fake.state()["most_instances"] == 2


def test_launch_without_capacity_fails_after_one_call(user: User, fake: FakeCloud) -> None:
    fake.settings(capacity={"g5.12xlarge": {"us-east-1a": 1}})
    with pytest.raises(errors.Capacity, match="InsufficientInstanceCapacity"):
        user.launch(a_cluster())
    assert operations(fake).count("RunInstances") == 1
    assert fake.state()["most_instances"] == 0


def test_launch_over_quota_names_the_quota(user: User, fake: FakeCloud) -> None:
    fake.settings(quota={"g5.12xlarge": 1})
    with pytest.raises(errors.Quota) as report:
        user.launch(a_cluster())
    assert "'Running On-Demand G and VT instances' (L-DB2E81BA) in us-east-1, which is" in str(report.value)
    assert "servicequotas/home/services/ec2/quotas/L-DB2E81BA" in str(report.value)
    assert operations(fake).count("RunInstances") == 1


def test_launch_over_quota_works_without_reading_the_quota_value(user: User, fake: FakeCloud) -> None:
    fake.settings(quota={"g5.12xlarge": 1})
    fake.fault(operation="GetServiceQuota", times=0, status=400, code="AccessDeniedException")
    with pytest.raises(errors.Quota, match=r"\(L-DB2E81BA\) in us-east-1: https"):
        user.launch(a_cluster())


def test_launch_refuses_a_token_used_for_another_request(user: User) -> None:
    user.launch(a_cluster())
    with pytest.raises(errors.TokenSpent):
        user.launch(a_cluster(), 3)


def test_launch_refuses_a_token_whose_machines_ended(user: User) -> None:
    ids = user.launch(a_cluster())
    user.cloud.terminate(ids)
    user.wait(lambda: all(machine.state == "ended" for machine in user.cloud.instances()))
    with pytest.raises(errors.TokenSpent):
        user.launch(a_cluster())


def test_launch_into_a_removed_network_raises_gone(user: User) -> None:
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    infrastructure = user.infrastructure(cluster, offer)
    user.remove_all()
    machine = NewMachine(name="demo-0", rank=0, user_data="#cloud-config\n{}\n")
    (request,) = user.cloud.requests(cluster, offer, infrastructure, offer.zones[0], "u" * 32, [machine])
    with pytest.raises(errors.Gone):
        user.cloud.send(request)


def test_failure_by_a_key_that_may_not_be_used_names_the_rights(user: User, fake: FakeCloud) -> None:
    fake.settings(late_failure={"*": "Client.InternalError: Client error on launch"})
    user.launch(a_cluster(), 1)
    user.wait(lambda: all(machine.state == "ended" for machine in user.cloud.instances()))
    (machine,) = user.cloud.instances()
    assert "its policy has to allow you kms:CreateGrant" in str(user.cloud.failure(machine))


def test_failure_reports_why_a_machine_ended_before_running(user: User, fake: FakeCloud) -> None:
    fake.settings(late_failure={"us-east-1a": "Server.InsufficientInstanceCapacity"})
    user.launch(a_cluster(), 1)
    user.wait(lambda: [machine.state for machine in user.cloud.instances()] == ["ended"])
    (machine,) = user.cloud.instances()
    assert isinstance(user.cloud.failure(machine), errors.CloudError)


# The end


def test_teardown_removes_all_aws_resources(user: User, fake: FakeCloud) -> None:
    user.launch(a_cluster())
    running(user, 2)
    user.remove_all()
    assert not fake.owned()
    assert user.cloud.resources() == ()


def test_terminate_ends_the_rest_when_an_id_is_gone(user: User) -> None:
    ids = user.launch(a_cluster(), 3)
    running(user, 3)
    user.cloud.terminate(["i-0123456789abcdef0", *ids, "i-0123456789abcdef1"])
    user.wait(lambda: all(machine.state == "ended" for machine in user.cloud.instances()))
    user.cloud.terminate(ids)
    user.cloud.terminate(["i-0123456789abcdef0"])
    user.cloud.terminate([])


def test_terminate_names_a_protected_machine_and_ends_the_rest(user: User) -> None:
    ids = user.launch(a_cluster(), 3)
    running(user, 3)
    ec2 = boto3.client("ec2")
    ec2.modify_instance_attribute(InstanceId=ids[1], DisableApiTermination={"Value": True})
    with pytest.raises(errors.CloudError, match=ids[1]):
        user.cloud.terminate(ids)
    user.wait(lambda: [m.id for m in user.cloud.instances() if m.alive] == [ids[1]])
    ec2.modify_instance_attribute(InstanceId=ids[1], DisableApiTermination={"Value": False})


def test_teardown_survives_lost_replies(user: User, fake: FakeCloud) -> None:
    ids = user.launch(a_cluster())
    fake.fault(operation="TerminateInstances", kind="drop_after")
    user.cloud.terminate(ids)
    user.wait(lambda: all(machine.state == "ended" for machine in user.cloud.instances()))
    fake.fault(operation="Delete*", kind="drop_after", times=3)
    user.remove_all()
    assert not fake.owned()


def test_delete_of_a_used_part_names_the_user(user: User) -> None:
    (machine,) = user.launch(a_cluster(), 1)
    running(user, 1)
    resources = {resource.kind: resource for resource in user.cloud.resources()}
    for kind in ("security-group", "subnet"):
        with pytest.raises(errors.Blocked, match=f"used by network interface eni-[0-9a-f]+ \\({machine}\\)"):
            user.cloud.delete(resources[kind])
    with pytest.raises(errors.Blocked):
        user.cloud.delete(resources["placement-group"])
    user.cloud.terminate([machine])
    user.wait(lambda: all(machine.state == "ended" for machine in user.cloud.instances()))
    subnet = resources["subnet"].id
    with pytest.raises(errors.Blocked, match=f"subnet {subnet}"):
        user.cloud.delete(resources["vpc"])


def test_delete_names_a_foreign_group_that_references_ours(user: User, fake: FakeCloud) -> None:
    cluster = a_cluster()
    infrastructure = user.infrastructure(cluster, user.cloud.offer(cluster))
    ec2 = boto3.client("ec2")
    made = ec2.create_security_group(
        GroupName="theirs", Description="theirs", VpcId=infrastructure.ids["vpc"]
    )
    pair: Any = [
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": infrastructure.ids["security_group"]}]}
    ]
    ec2.authorize_security_group_ingress(GroupId=made["GroupId"], IpPermissions=pair)
    (resource,) = [resource for resource in user.cloud.resources() if resource.kind == "security-group"]
    with pytest.raises(errors.Blocked, match=f"security group {made['GroupId']}"):
        user.cloud.delete(resource)
    (network,) = [resource for resource in user.cloud.resources() if resource.kind == "vpc"]
    with pytest.raises(errors.Blocked, match=rf"security group {made['GroupId']} \(theirs\)"):
        user.cloud.delete(network)
    ec2.delete_security_group(GroupId=made["GroupId"])
    user.remove_all()
    assert not fake.owned()


def test_parts_lists_a_leftover_volume(user: User, fake: FakeCloud) -> None:
    user.launch(a_cluster(), 1)
    running(user, 1)
    assert "volume" not in {resource.kind for resource in user.cloud.resources()}
    tags: Any = [{"Key": key, "Value": value} for key, value in tags_of_a_cluster().items()]
    made = boto3.client("ec2").create_volume(
        AvailabilityZone="us-east-1a", Size=8, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )
    (volume,) = [resource for resource in user.cloud.resources() if resource.kind == "volume"]
    assert (volume.id, volume.stage) == (made["VolumeId"], 0)
    user.remove_all()
    assert not fake.owned()


def tags_of_a_cluster() -> dict[str, str]:
    return requests.cluster_tags(a_cluster())


def tagged(*names: str) -> None:
    tags: Any = [{"Key": key, "Value": value} for key, value in tags_of_a_cluster().items()]
    boto3.client("ec2").create_tags(Resources=list(names), Tags=tags)


def test_parts_lists_resources_attached_to_a_foreign_instance(user: User, fake: FakeCloud) -> None:
    """Resources attached to a gpuctl machine are deleted with the machine."""
    ec2 = boto3.client("ec2")
    (local,) = user.launch(a_cluster(), 1)
    running(user, 1)
    image = user.cloud.offer(a_cluster()).image_id
    made = ec2.run_instances(ImageId=image, InstanceType="g5.xlarge", MinCount=1, MaxCount=1)["Instances"]
    stranger = made[0]["InstanceId"]
    disk = made[0]["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    interface = made[0]["NetworkInterfaces"][0]["NetworkInterfaceId"]
    tagged(disk, interface)
    result = attachable(user)
    assert set(result) == {disk, interface}
    for resource in result.values():
        with pytest.raises(
            errors.Blocked, match=f"The {resource.kind} {resource.id} .* by instance {stranger}"
        ):
            user.cloud.delete(resource)
    user.cloud.terminate([local])
    user.wait(lambda: all(machine.state == "ended" for machine in user.cloud.instances()))
    assert set(attachable(user)) == {disk, interface}
    ec2.terminate_instances(InstanceIds=[stranger])
    user.wait(lambda: attachable(user) == {})
    user.remove_all()
    assert not fake.owned()


def attachable(user: User) -> dict[str, Resource]:
    return {
        resource.id: resource
        for resource in user.cloud.resources()
        if resource.kind in ("volume", "network-interface")
    }


def test_parts_lists_a_leftover_network_interface(user: User, fake: FakeCloud) -> None:
    cluster = a_cluster()
    infrastructure = user.infrastructure(cluster, user.cloud.offer(cluster))
    made = boto3.client("ec2").create_network_interface(SubnetId=infrastructure.ids["subnet"])[
        "NetworkInterface"
    ]
    assert attachable(user) == {}
    tagged(made["NetworkInterfaceId"])
    (resource,) = attachable(user).values()
    assert resource.tags == tags_of_a_cluster()
    user.remove_all()
    assert not fake.owned()


def test_parts_and_instances_raise_when_a_list_is_refused(user: User, fake: FakeCloud) -> None:
    fake.fault(operation="DescribeVolumes", times=0, status=403, code="UnauthorizedOperation")
    with pytest.raises(errors.Denied, match="ec2:DescribeVolumes"):
        user.cloud.resources()
    fake.fault(operation="DescribeInstances", times=0, status=400, code="InvalidParameterValue")
    with pytest.raises(errors.CloudError):
        user.cloud.instances()


# The account


def test_instances_reads_all_result_pages(user: User, fake: FakeCloud) -> None:
    user.launch(a_cluster(), 5)
    fake.settings(reply_page_size=2)
    assert len(user.cloud.instances("a1b2c3d4e5f60718")) == 5


def test_aws_cloud_has_the_cloud_attributes_and_target(user: User) -> None:
    cloud: Cloud = user.cloud
    assert (cloud.name, cloud.one_user_data) == ("aws", True)
    assert cloud.target == Target(provider="aws", region="us-east-1", account="123456789012")
    assert cloud.consistency_s == 5


def test_connect_refuses_an_unknown_or_missing_region(
    fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with pytest.raises(InvalidInput, match="no region 'us-esat-1'; did you mean"):
        connect(Target(provider="aws", region="us-esat-1"), clock=SystemClock())
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(InvalidInput, match="Give --region"):
        connect(Target(provider="aws"), clock=SystemClock())


def test_connect_without_credentials_and_region_names_both(
    fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the credentials, as a dry run continues without them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    with pytest.raises(
        errors.BadCredentials, match=r"no credentials for AWS here, and no region\..*--region"
    ):
        connect(Target(provider="aws"), clock=SystemClock())


def test_connect_refuses_an_unknown_profile(fake: FakeCloud) -> None:
    with pytest.raises(errors.BadCredentials, match="no profile 'nobody'"):
        connect(Target(provider="aws", profile="nobody"), clock=SystemClock())


def test_connect_finds_the_account_with_one_call(fake: FakeCloud) -> None:
    target = connect(Target(provider="aws"), clock=FastClock()).target
    assert target == Target(provider="aws", region="us-east-1", account="123456789012")
    assert [call["operation"] for call in fake.calls()] == ["GetCallerIdentity"]


def test_connect_without_credentials_names_the_variables(
    fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(errors.BadCredentials, match=r"Look at the variables AWS_\*"):
        connect(Target(provider="aws"), clock=FastClock())


def test_connect_times_out_on_a_hanging_credential_process(
    fake: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "config").write_text("[default]\nregion = us-east-1\ncredential_process = sleep 3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(credentials, "CREDENTIALS_S", 0.3)
    with pytest.raises(errors.BadCredentials, match=r"were not there within 0 s.*credential_process"):
        connect(Target(provider="aws"), clock=FastClock())


def test_connect_with_wrong_credentials_says_log_in_again(
    fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    with pytest.raises(errors.BadCredentials, match=r"\(InvalidClientTokenId\).*log in again"):
        connect(Target(provider="aws"), clock=FastClock())


def test_expired_credentials_fail_without_retry(user: User, fake: FakeCloud) -> None:
    fake.fault(operation="DescribeInstances", times=0, status=400, code="RequestExpired")
    with pytest.raises(errors.BadCredentials):
        user.cloud.instances()
    fake.clear_faults()
    fake.fault(operation="DescribeInstances", status=400, code="ExpiredToken")
    with pytest.raises(errors.BadCredentials):
        user.cloud.instances()
    assert len(fake.calls("DescribeInstances")) == 2


def test_renewed_credentials_are_picked_up(fake: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = AwsCloud(Target(provider="aws"), clock=FastClock())
    assert cloud.instances() == ()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-newer-one")
    fake.fault(operation="DescribeInstances", status=400, code="ExpiredToken")
    assert cloud.instances() == ()


def test_renewed_credentials_are_picked_up_by_parallel_calls(
    fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls have failed before the first call looks for newer credentials."""
    cloud = AwsCloud(Target(provider="aws"), clock=FastClock())
    together = threading.Barrier(4)
    client = cloud.api._client("ec2")
    client.meta.events.register("after-call.ec2.DescribeInstances", lambda **_: together.wait(10))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-newer-one")
    fake.fault(operation="DescribeInstances", times=4, status=400, code="ExpiredToken")
    assert run_all(lambda _: cloud.instances(), range(4)) == [()] * 4
    assert len(fake.calls("DescribeInstances")) == 8


def test_api_call_without_connection_raises_unclear(fake: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    api = Api(region="us-east-1", profile=None, clock=FastClock())
    with pytest.raises(errors.Unclear, match="Could not connect"):
        api.call("create_vpc", CidrBlock="10.77.0.0/16")
