"""Test refusals, if possible before any resource is created; foreign resources stay untouched."""

import boto3
import pytest

from inventories.errors import InvalidInput
from provision.eks import requests
from provision.errors import Denied, Exists, NoCapacity, RefusedPlan, UnknownShape
from provision.rented.tagged_clusters import list_billed
from provision.rented.teardown import remove
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import FastClock
from tests.provision.eks.building import User, operations, region_of

QUOTA_OF_G = "L-DB2E81BA"


def test_shape_without_gpus_is_refused(user: User, fake: FakeCloud) -> None:
    with pytest.raises(InvalidInput, match=r"m5.large has no NVIDIA GPU"):
        user.plan(shape="m5.large")
    with pytest.raises(UnknownShape, match=r"no instance type 'g5.13xlarge'"):
        user.plan(shape="g5.13xlarge")
    assert operations(fake) == []


def test_quota_of_zero_is_refused(user: User, fake: FakeCloud) -> None:
    fake.settings(quotas={QUOTA_OF_G: 0.0})
    with pytest.raises(NoCapacity, match=r"2 g5.12xlarge need 96 vCPUs, and the quota 'Running On-Demand G"):
        user.plan(2)
    assert operations(fake) == []


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("subnet_id", "subnet-1", "--subnet-id"),
        ("bastion", "me@there", "--bastion"),
        ("driver", "580", "--driver"),
    ],
)
def test_option_that_nodes_have_not_is_refused(user: User, option: str, value: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"eks has no {message}"):
        user.plan(**{option: value})


def test_range_of_ipv6_is_refused_before_anything_is_made(user: User) -> None:
    with pytest.raises(InvalidInput, match="2001:db8::/64, and it has IPv4 addresses only"):
        user.plan(ssh_cidr="2001:db8::/64")


def test_missing_permission_is_named_and_nothing_is_left(user: User, fake: FakeCloud) -> None:
    fake.settings(denied=["CreateCluster"])
    with pytest.raises(Denied, match="to allow eks:CreateCluster"):
        user.up(1)
    fake.settings(denied=[])
    assert user.down() == ()
    assert fake.owned() == []


def test_role_of_that_name_that_is_not_ours_is_left_alone(user: User, fake: FakeCloud) -> None:
    plan = user.plan(1)
    role = requests.role_name(plan.details.cluster, requests.CLUSTER_ROLE)
    iam = boto3.client("iam", region_name="us-east-1")
    iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
    with pytest.raises(
        Exists, match=f"The role {role} is there already, and was not made for cluster 'demo'"
    ):
        user.provider.create(plan, user.folder.journal)
    assert user.down() == ()
    assert fake.owned() == []
    assert iam.get_role(RoleName=role)["Role"]["RoleName"] == role


@pytest.mark.slow
def test_cluster_of_another_with_the_same_name_stays(user: User, fake: FakeCloud, tmp_path: object) -> None:
    user.up(1)
    another = User(user.home.with_name("another"), name=user.name)
    theirs = {item["id"] for item in fake.owned()}
    assert another.plan(1).create[0].name == "demo-0"
    assert another.down() == ()
    assert {item["id"] for item in fake.owned()} == theirs
    assert user.down() == ()


@pytest.mark.slow
def test_running_cluster_keeps_its_shape(user: User) -> None:
    user.up(2)
    with pytest.raises(RefusedPlan, match=r"--shape g5.12xlarge, not g5.xlarge"):
        user.plan(2, shape="g5.xlarge")


def test_price_over_the_limit_is_refused_with_the_control_plane_in_it(user: User) -> None:
    with pytest.raises(RefusedPlan, match="can't be kept without a time limit"):
        user.plan(1, max_cost_usd=5.0)
    machines, disks, addresses = 5.672 + 0.096, (200 + 80) * 0.08 / 730, 2 * 0.005
    plan = user.plan(1, ttl_s=3600.0, max_cost_usd=6.0)
    assert plan.hourly_usd == pytest.approx(machines + disks + addresses + 0.10)
    assert sum(resource.hourly_usd or 0 for resource in plan.resources) == pytest.approx(plan.hourly_usd)
    assert "the control plane is billed, $0.10 an hour" in plan.ending


@pytest.mark.slow
def test_reap_finds_it_without_files_and_removes_what_controllers_left(user: User, fake: FakeCloud) -> None:
    user.up(1)
    cloud = region_of(fake)
    (cluster,) = (resource for resource in cloud.resources() if resource.kind == "kubernetes-cluster")
    ec2 = boto3.client("ec2", region_name="us-east-1")
    vpc = next(resource.id for resource in cloud.resources() if resource.kind == "vpc")
    subnet = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"][0]["SubnetId"]
    for of in ({requests.INTERFACE_OF: cluster.name}, {requests.INTERFACE_OF: "somebody-elses"}):
        pairs = [{"Key": key, "Value": value} for key, value in of.items()]
        ec2.create_network_interface(
            SubnetId=subnet, TagSpecifications=[{"ResourceType": "network-interface", "Tags": pairs}]
        )
    volume = {requests.OWNED_BY + cluster.name: "owned", requests.VOLUME_OF: "true"}
    ec2.create_volume(
        AvailabilityZone="us-east-1a",
        Size=1,
        TagSpecifications=[
            {
                "ResourceType": "volume",
                "Tags": [{"Key": key, "Value": value} for key, value in volume.items()],
            }
        ],
    )
    # Groups of a classic load balancer, and of the AWS Load Balancer Controller.
    for number, (key, value) in enumerate(
        ((requests.OWNED_BY + cluster.name, "owned"), (requests.BALANCED_FOR, cluster.name))
    ):
        pairs = [{"Key": key, "Value": value}]
        ec2.create_security_group(
            GroupName=f"k8s-elb-{number}",
            Description="by a controller",
            VpcId=vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": pairs}],
        )
    assert {"network-interface", "volume"} <= {resource.kind for resource in cloud.resources()}
    (billed,) = list_billed(cloud, {"g5.12xlarge": 5.672}.get).clusters
    assert len(billed.machines) == 2
    assert billed.most_hourly_usd == pytest.approx(5.672 + 0.096 + 2 * 0.005 + 0.10)

    removed = remove(cloud, None, clock=FastClock(), say=user.said.append, blocked_timeout_s=20.0)

    # A foreign interface in the network is reported and stays.
    assert {resource.kind for resource in removed.leftovers} <= {
        "subnet",
        "vpc",
        "route-table",
        "internet-gateway",
    }
    assert [resource["kind"] for resource in fake.state()["resources"] if resource["kind"] == "volume"] == []
    left = ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["SecurityGroups"]
    assert [resource["GroupName"] for resource in left if resource["GroupName"].startswith("k8s-elb-")] == []
    (remains,) = (
        resource for resource in fake.state()["resources"] if resource["kind"] == "network-interface"
    )
    assert remains["tags"] == {requests.INTERFACE_OF: "somebody-elses"}
