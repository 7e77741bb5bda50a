"""Test the AWS resources below machines: created once, whatever fails in between."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from inventories.errors import InvalidInput
from inventories.threads import run_all, values
from provision import errors
from provision.aws import requests
from provision.aws.infrastructure import network, subnets
from provision.aws.infrastructure.find_or_create import Listing, ResourceMaker
from provision.records import CloudCluster, Infrastructure, Zone
from tests.fakes.client import FakeCloud
from tests.provision.aws.building import NEW, PUBLIC_KEY, User, a_cluster, operations, running


def kinds(fake: FakeCloud) -> Counter[str]:
    """Count gpuctl's resources by kind, without those of instances."""
    result = Counter(entry.get("kind", "instance") for entry in fake.owned())
    return Counter({kind: n for kind, n in result.items() if kind not in ("volume", "network-interface")})


INFRASTRUCTURE = Counter(
    {
        "vpc": 1,
        "subnet": 1,
        "internet-gateway": 1,
        "route-table": 1,
        "security-group": 1,
        "key-pair": 1,
        "placement-group": 1,
    }
)


# Offers


def test_offer_describes_gpus_image_disk_and_zones(user: User) -> None:
    offer = user.cloud.offer(a_cluster())
    assert (offer.gpus, offer.user, offer.disk_gb, offer.hourly_usd) == (4, "ubuntu", 200, None)
    assert offer.image_name == "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260701"
    assert Zone(name="us-east-1a") in offer.zones
    assert json.loads(json.dumps(dict(offer.facts))) == dict(offer.facts)


def test_offer_reads_gpus_of_types_missing_in_the_catalog(user: User) -> None:
    offer = user.cloud.offer(a_cluster("g5.2xlarge"))
    assert offer.gpus == 1
    assert user.cloud.offer(a_cluster("t3.micro")).gpus == 0


def test_offer_refuses_an_unknown_instance_type(user: User) -> None:
    with pytest.raises(errors.UnknownShape, match=r"no instance type 'g5\.13xlarge' in us-east-1\. Did you"):
        user.cloud.offer(a_cluster("g5.13xlarge"))


def test_offer_lists_only_zones_that_have_the_type(user: User, fake: FakeCloud) -> None:
    fake.settings(capacity={"g5.12xlarge": {"us-east-1a": -1}})
    assert Zone(name="us-east-1a") not in user.cloud.offer(a_cluster()).zones
    fake.settings(capacity={"g5.12xlarge": {"*": -1}})
    with pytest.raises(errors.UnknownShape, match="in no zone of us-east-1"):
        user.cloud.offer(a_cluster())


@pytest.mark.parametrize(
    "image",
    [
        "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
        "al2023-ami-2023*",
        "al2023-ami-2023.9.20260629.0-kernel-6.1-x86_64",
    ],
)
def test_offer_finds_images_by_ssm_parameter_and_name(user: User, image: str) -> None:
    offer = user.cloud.offer(a_cluster(image=image))
    assert (offer.user, offer.facts["root_device"]) == ("ec2-user", "/dev/xvda")
    assert user.cloud.offer(a_cluster(image=offer.image_id)).image_name == offer.image_name


def test_offer_ignores_same_named_images_of_other_owners(user: User) -> None:
    """The fake has a newer image of that name from another owner."""
    offer = user.cloud.offer(a_cluster(image="Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)"))
    assert offer.image_name.endswith("20260701")


def test_offer_finds_the_default_image_without_ssm_access(user: User, fake: FakeCloud) -> None:
    fake.fault(operation="GetParameter", status=400, code="AccessDeniedException", message="no")
    assert user.cloud.offer(a_cluster()).image_name.endswith("20260701")


@pytest.mark.parametrize(
    "image", ["ami-0123456789abcdef0", "ami-what", "no such image", "/no/such/parameter"]
)
def test_offer_refuses_an_unknown_image(user: User, image: str) -> None:
    with pytest.raises(InvalidInput, match=f"no image '{image}' in us-east-1"):
        user.cloud.offer(a_cluster(image=image))


def test_offer_refuses_an_image_of_another_architecture(user: User) -> None:
    deep = user.cloud.offer(a_cluster())
    with pytest.raises(InvalidInput, match="is for x86_64, and the shape has arm64"):
        user.cloud.offer(a_cluster("g5g.xlarge", image=deep.image_id))


def test_regions_lists_aws_regions(user: User) -> None:
    assert {"us-east-1", "eu-central-1"} <= set(user.cloud.regions())


# The infrastructure


def test_prepare_creates_network_resources_once(user: User, fake: FakeCloud) -> None:
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    first = user.infrastructure(cluster, offer)
    assert kinds(fake) == INFRASTRUCTURE
    fake.forget_calls()
    assert user.infrastructure(cluster, offer) == first
    assert operations(fake) == []


def test_preview_lists_exactly_the_calls_launch_makes(user: User, fake: FakeCloud) -> None:
    cluster = a_cluster()
    shown = user.cloud.preview(cluster, user.cloud.offer(cluster), NEW, ()).requests
    user.launch(cluster)
    assert Counter(request.operation for request in shown) == Counter(operations(fake))


def test_preview_leaves_out_existing_resources(user: User) -> None:
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    infrastructure = user.infrastructure(cluster, offer)
    resources = user.cloud.resources()
    moved = replace(cluster, ssh_cidrs=("198.51.100.8/32",))
    again = user.cloud.preview(moved, offer, NEW, resources, cluster.ssh_cidrs)
    assert [request.operation for request in again.requests] == [
        "AuthorizeSecurityGroupIngress",
        "RevokeSecurityGroupIngress",
        "RunInstances",
    ]
    assert {resource.action for resource in again.resources} == {"use"}
    (interface,) = again.requests[-1].body["NetworkInterfaces"]
    assert (interface["SubnetId"], interface["Groups"]) == (
        infrastructure.ids["subnet"],
        [infrastructure.ids["security_group"]],
    )
    other = user.cloud.preview(a_cluster(name="other", id="f" * 16), offer, NEW, resources)
    made = [resource.kind for resource in other.resources if resource.action == "create"]
    assert made == ["security-group", "key-pair", "placement-group"]
    elsewhere = replace(offer, zones=(Zone(name="us-east-1b"),))
    existing = user.cloud.preview(cluster, elsewhere, NEW, resources, cluster.ssh_cidrs)
    made = [resource.kind for resource in existing.resources if resource.action == "create"]
    assert made == ["subnet", "placement-group"]


def test_prepare_shares_the_vpc_between_clusters(user: User, fake: FakeCloud) -> None:
    item, two = a_cluster(), a_cluster(name="other", id="ffffffffffffffff")
    user.infrastructure(item, user.cloud.offer(item))
    user.infrastructure(two, user.cloud.offer(two), Zone(name="us-east-1b"))
    assert kinds(fake) == INFRASTRUCTURE + Counter(
        {"subnet": 1, "security-group": 1, "key-pair": 1, "placement-group": 1}
    )


def test_vpc_for_prefers_the_vpc_of_the_clusters_group() -> None:
    """A race of two people may have made two networks; later, everybody takes the first one."""
    vpcs = [{"VpcId": "vpc-b"}, {"VpcId": "vpc-a"}]
    assert network._vpc_for(vpcs, []) == {"VpcId": "vpc-a"}
    assert network._vpc_for(vpcs, [{"GroupId": "sg-1", "VpcId": "vpc-b"}]) == {"VpcId": "vpc-b"}
    assert network._vpc_for(vpcs, [{"GroupId": "sg-1", "VpcId": "vpc-gone"}]) == {"VpcId": "vpc-a"}
    assert network._vpc_for([], []) is None


def test_launch_at_the_vpc_limit_suggests_subnet_id(user: User, fake: FakeCloud) -> None:
    fake.settings(vpc_limit=1)
    with pytest.raises(errors.Quota, match="or give --subnet-id"):
        user.launch(a_cluster())
    assert not fake.owned()


def test_prepare_sets_exactly_the_requested_ssh_rules(user: User) -> None:
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    group = user.infrastructure(cluster, offer).ids["security_group"]
    ec2 = boto3.client("ec2")

    def sources() -> set[str]:
        (result,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
        return {
            f"{permission.get('FromPort', 'all')} {source.get('CidrIp') or source.get('GroupId')}"
            for permission in result["IpPermissions"]
            for source in [*permission["IpRanges"], *permission["UserIdGroupPairs"]]
        }

    assert sources() == {"22 198.51.100.7/32", f"all {group}"}
    ec2.authorize_security_group_ingress(
        GroupId=group, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0"
    )
    moved = replace(cluster, ssh_cidrs=("192.0.2.1/32", "192.0.2.2/32"))
    user.infrastructure(moved, offer)
    assert sources() == {"22 192.0.2.1/32", "22 192.0.2.2/32", f"all {group}"}


def test_prepare_replaces_rules_of_a_group_listed_late(user: User, fake: FakeCloud) -> None:
    """Made before, and not listed yet when this `up` began: its rules count as well."""
    cluster = a_cluster(ssh_cidrs=("0.0.0.0/0",))
    offer = user.cloud.offer(cluster)
    group = user.infrastructure(cluster, offer).ids["security_group"]

    class Late(ResourceMaker):
        """A list of groups that shows nothing at the first look."""

        def listing(self, operation: str, key: str, *which: Any, **more: Any) -> Listing:
            listing, polls = super().listing(operation, key, *which, **more), itertools.count()
            early = operation == "describe_security_groups"
            return Listing(lambda: [] if early and not next(polls) else listing.read())

    moved = replace(cluster, ssh_cidrs=("192.0.2.1/32",))
    late = Late(user.cloud.api, user.clock, 5.0, moved, user.ensure)
    infrastructure = network.prepare(late, offer, PUBLIC_KEY)
    assert infrastructure.ids["security_group"] == group
    (result,) = boto3.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"]
    ranges = [source["CidrIp"] for permission in result["IpPermissions"] for source in permission["IpRanges"]]
    assert ranges == ["192.0.2.1/32"]


def test_prepare_revokes_ssh_rules_despite_a_lost_reply(user: User, fake: FakeCloud) -> None:
    """Revoked again, it is not there: nor is another one, which is revoked with it."""
    cluster = a_cluster(ssh_cidrs=("192.0.2.1/32", "192.0.2.2/32"))
    offer = user.cloud.offer(cluster)
    user.infrastructure(cluster, offer)
    fake.fault(operation="RevokeSecurityGroupIngress", kind="drop_after")
    group = user.infrastructure(a_cluster(), offer).ids["security_group"]
    (result,) = boto3.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"]
    ranges = [source["CidrIp"] for permission in result["IpPermissions"] for source in permission["IpRanges"]]
    assert ranges == ["198.51.100.7/32"]


def test_prepare_authorizes_ssh_rules_despite_a_lost_reply(user: User, fake: FakeCloud) -> None:
    """Rules granted twice: AWS refuses all of them because of the existing one."""
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    fake.fault(operation="AuthorizeSecurityGroupIngress", kind="drop_after")
    user.infrastructure(cluster, offer)
    assert operations(fake).count("AuthorizeSecurityGroupIngress") >= 2


def test_prepare_keeps_key_pair_of_another_computer(user: User, fake: FakeCloud) -> None:
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    made = user.infrastructure(cluster, offer)
    again = user.cloud.prepare(cluster, offer, "ssh-ed25519 AAAAother", user.ensure)
    assert again.ids["key"] == made.ids["key"]
    assert operations(fake).count("ImportKeyPair") == 1


def test_ssh_cidrs_are_those_of_the_group(user: User) -> None:
    cluster = a_cluster(ssh_cidrs=("192.0.2.0/24", "2001:db8::1/128"))
    assert user.cloud.ssh_cidrs(cluster) == ()
    user.infrastructure(cluster, user.cloud.offer(cluster))
    assert set(user.cloud.ssh_cidrs(cluster)) == set(cluster.ssh_cidrs)


def test_prepare_does_not_adopt_untagged_resources(user: User, fake: FakeCloud) -> None:
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    ec2 = boto3.client("ec2")
    ec2.create_placement_group(GroupName="gpuctl-demo-a1b2c3d4-us-east-1a", Strategy="cluster")
    foreign = ec2.create_vpc(CidrBlock="10.77.0.0/16")["Vpc"]["VpcId"]
    with pytest.raises(errors.Exists, match="was not made for this cluster"):
        user.infrastructure(cluster, offer)
    user.remove_all()
    assert not fake.owned()
    assert ec2.describe_vpcs(VpcIds=[foreign])["Vpcs"]
    assert ec2.describe_placement_groups()["PlacementGroups"]


MAKING = (
    "CreateVpc",
    "CreateInternetGateway",
    "AttachInternetGateway",
    "CreateRouteTable",
    "CreateRoute",
    "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "ImportKeyPair",
    "CreateSubnet",
    "AssociateRouteTable",
    "CreatePlacementGroup",
    "RunInstances",
)


@pytest.mark.parametrize("operation", MAKING)
@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "error"])
def test_launch_with_a_lost_reply_creates_nothing_twice(
    user: User, fake: FakeCloud, operation: str, kind: str
) -> None:
    fake.fault(operation=operation, kind=kind)
    cluster = a_cluster()
    ids = user.launch(cluster)
    assert kinds(fake) == INFRASTRUCTURE + Counter({"instance": 2})
    assert [machine.id for machine in sorted(running(user, 2), key=lambda m: m.rank or 0)] == list(ids)
    assert fake.state()["most_instances"] == 2


def test_launch_with_lagging_lists_creates_nothing_twice(user: User, fake: FakeCloud) -> None:
    fake.settings(list_lag_s=3)
    cluster = a_cluster()
    user.launch(cluster)
    assert kinds(fake) == INFRASTRUCTURE + Counter({"instance": 2})
    running(user, 2)


CHANGING = (
    "AttachInternetGateway",
    "CreateRoute",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "AssociateRouteTable",
)
"""Calls about something that was just made, which take no token."""


def test_prepare_survives_lost_replies_with_lagging_lists(
    fake: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors of repeated calls cannot be explained by the lists yet."""
    monkeypatch.setenv("GPUCTL_CONSISTENCY_S", "60")
    user = User(tmp_path / "home")
    fake.settings(list_lag_s=40)
    for operation in CHANGING:
        fake.fault(operation=operation, kind="drop_after")
    cluster = a_cluster("p4d.24xlarge")
    infrastructure = user.infrastructure(cluster, user.cloud.offer(cluster))
    assert {call["code"] for call in fake.calls(mutating=True)} >= {"Dropped", "Resource.AlreadyAssociated"}
    gateway = boto3.client("ec2").describe_internet_gateways(
        InternetGatewayIds=[infrastructure.ids["internet_gateway"]]
    )
    assert gateway["InternetGateways"][0]["Attachments"][0]["VpcId"] == infrastructure.ids["vpc"]
    assert Counter(operations(fake))["CreateInternetGateway"] == 1


def test_launch_survives_throttling(user: User, fake: FakeCloud) -> None:
    fake.fault(nth=3, times=8, status=503, code="RequestLimitExceeded")
    user.launch(a_cluster())
    assert kinds(fake) == INFRASTRUCTURE + Counter({"instance": 2})


def test_launch_by_two_users_at_once_works_and_is_removable(fake: FakeCloud, tmp_path: Path) -> None:
    """Only the account is shared: both users get a working network, and both are removed."""
    users = [User(tmp_path / name) for name in ("one", "two")]
    clusters = [a_cluster(name=name, id=name * 5) for name in ("aaa", "bbb")]

    def launch(number: int) -> tuple[str, ...]:
        return users[number].launch(clusters[number], token=str(number) * 32)

    assert [len(ids) for ids in values(run_all(launch, (0, 1)))] == [2, 2]
    running(users[0], 4)
    users[0].remove_all()
    assert not fake.owned()


def another_table(infrastructure: Infrastructure, cluster: CloudCluster) -> str:
    """Create a second gpuctl route table without a route, as another user's racing `up` does."""
    request: Any = requests.route_table(cluster, infrastructure.ids["vpc"], "another")
    made = boto3.client("ec2").create_route_table(**request)
    return str(made["RouteTable"]["RouteTableId"])


def test_prepare_keeps_the_route_table_of_a_subnet(user: User, fake: FakeCloud) -> None:
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    infrastructure = user.infrastructure(cluster, offer)
    subnet = infrastructure.ids["subnet"]
    ec2 = boto3.client("ec2")
    tables = {infrastructure.ids["route_table"], another_table(infrastructure, cluster)}
    (bound,) = ec2.describe_route_tables(Filters=[{"Name": "association.subnet-id", "Values": [subnet]}])[
        "RouteTables"
    ]
    ec2.disassociate_route_table(AssociationId=bound["Associations"][0]["RouteTableAssociationId"])
    # The table that gpuctl would not choose.
    ec2.associate_route_table(RouteTableId=max(tables), SubnetId=subnet)
    fake.forget_calls()
    again = user.infrastructure(cluster, offer)
    assert again.ids["route_table"] == min(tables)
    assert "AssociateRouteTable" not in operations(fake)
    for table in ec2.describe_route_tables(RouteTableIds=sorted(tables))["RouteTables"]:
        gateways = {route.get("GatewayId"): route.get("DestinationCidrBlock") for route in table["Routes"]}
        assert gateways[infrastructure.ids["internet_gateway"]] == "0.0.0.0/0"
    fake.forget_calls()
    user.infrastructure(cluster, offer)
    assert operations(fake) == []
    user.remove_all()
    assert not fake.owned()


def test_associate_returns_a_route_table_associated_meanwhile(user: User, fake: FakeCloud) -> None:
    """Between the look and the call; the fake refuses a second association as EC2 does."""
    cluster = a_cluster()
    offer = user.cloud.offer(cluster)
    infrastructure = user.infrastructure(cluster, offer)
    maker = user.cloud.maker(cluster, user.ensure)
    tables = maker.listing("describe_route_tables", "RouteTables", requests.ours())
    subnet, other = infrastructure.ids["subnet"], another_table(infrastructure, cluster)
    had = subnets.associate(maker, subnet, other, tables)
    assert had["RouteTableId"] == infrastructure.ids["route_table"]
    with pytest.raises(errors.Exists, match=r"\(Resource.AlreadyAssociated\)"):
        subnets.associate(maker, subnet, other, Listing(list))


# Existing subnets


def existing_subnet(zone: str = "us-east-1b") -> str:
    ec2 = boto3.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/20", AvailabilityZone=zone)
    return str(made["Subnet"]["SubnetId"])


def test_launch_uses_an_existing_subnet_and_keeps_it(user: User, fake: FakeCloud) -> None:
    subnet = existing_subnet()
    cluster = a_cluster("p4d.24xlarge", subnet_id=subnet, public_ip=False)
    offer = user.cloud.offer(cluster)
    assert offer.zones == (Zone(name="us-east-1b"),)
    user.launch(cluster)
    machines = running(user, 2)
    assert all(machine.private_ip and machine.public_ip is None for machine in machines)
    assert kinds(fake)["vpc"] == kinds(fake)["subnet"] == 0
    (reservation,) = boto3.client("ec2").describe_instances(
        Filters=[{"Name": "instance-id", "Values": [machines[0].id]}]
    )["Reservations"]
    interfaces = reservation["Instances"][0]["NetworkInterfaces"]
    assert sorted(interface["InterfaceType"] for interface in interfaces) == ["efa-only"] * 4 + ["interface"]
    user.remove_all()
    assert not fake.owned()
    assert boto3.client("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"]


@pytest.mark.parametrize("subnet", ["subnet-0123456789abcdef0", "what"])
def test_offer_refuses_an_unknown_subnet(user: User, subnet: str) -> None:
    with pytest.raises(InvalidInput, match=f"no subnet '{subnet}' in us-east-1"):
        user.cloud.offer(a_cluster(subnet_id=subnet))


def test_offer_refuses_a_subnet_whose_zone_lacks_the_type(user: User, fake: FakeCloud) -> None:
    fake.settings(capacity={"g5.12xlarge": {"us-east-1b": -1}})
    with pytest.raises(InvalidInput, match=r"is in us-east-1b, where AWS does not offer g5\.12xlarge"):
        user.cloud.offer(a_cluster(subnet_id=existing_subnet()))
