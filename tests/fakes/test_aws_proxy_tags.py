"""The fake EC2: tags from the create call on, and lists that lack new resources."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from provision.ssh_keys import new_key
from tests.fakes.aws_proxy.user import Aws, Net, refused, until

pytest_plugins = ["tests.fakes.aws_proxy.fixtures"]


def _specification(kind: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": [{"Key": "gpuctl", "Value": kind}]}]


PUBLIC_KEY = f"{new_key().public} somebody@somewhere".encode()

CREATE: dict[str, Callable[[Aws, Net], Any]] = {
    "vpc": lambda aws, _: aws.ec2.create_vpc(
        CidrBlock="10.9.0.0/16", TagSpecifications=_specification("vpc")
    ),
    "subnet": lambda aws, net: aws.ec2.create_subnet(
        VpcId=net.vpc, CidrBlock="10.7.5.0/24", TagSpecifications=_specification("subnet")
    ),
    "internet-gateway": lambda aws, _: aws.ec2.create_internet_gateway(
        TagSpecifications=_specification("internet-gateway")
    ),
    "route-table": lambda aws, net: aws.ec2.create_route_table(
        VpcId=net.vpc, TagSpecifications=_specification("route-table")
    ),
    "security-group": lambda aws, net: aws.ec2.create_security_group(
        VpcId=net.vpc, GroupName="t", Description="t", TagSpecifications=_specification("security-group")
    ),
    "key-pair": lambda aws, _: aws.ec2.import_key_pair(
        KeyName="t", PublicKeyMaterial=PUBLIC_KEY, TagSpecifications=_specification("key-pair")
    ),
    "placement-group": lambda aws, _: aws.ec2.create_placement_group(
        GroupName="t", Strategy="cluster", TagSpecifications=_specification("placement-group")
    ),
    "network-interface": lambda aws, net: aws.ec2.create_network_interface(
        SubnetId=net.subnet, TagSpecifications=_specification("network-interface")
    ),
    "volume": lambda aws, _: aws.ec2.create_volume(
        AvailabilityZone="us-east-1a", Size=9, TagSpecifications=_specification("volume")
    ),
    "instance": lambda aws, net: aws.run(net, TagSpecifications=_specification("instance")),
}


class TestTags:
    def test_create_calls_tag_their_resources(self, aws: Aws, net: Net) -> None:
        for kind, create in CREATE.items():
            create(aws, net)
            (tag,) = aws.ec2.describe_tags(Filters=[{"Name": "resource-type", "Values": [kind]}])["Tags"]
            assert (tag["Key"], tag["Value"]) == ("gpuctl", kind)
            (owned,) = [entry for entry in aws.cloud.owned() if entry["id"] == tag["ResourceId"]]
            assert owned["tags"] == {"gpuctl": kind}
        ours = {"Name": "tag:gpuctl", "Values": ["*"]}
        for operation, items in (
            ("describe_vpcs", "Vpcs"),
            ("describe_subnets", "Subnets"),
            ("describe_internet_gateways", "InternetGateways"),
            ("describe_route_tables", "RouteTables"),
            ("describe_security_groups", "SecurityGroups"),
            ("describe_key_pairs", "KeyPairs"),
            ("describe_placement_groups", "PlacementGroups"),
            ("describe_network_interfaces", "NetworkInterfaces"),
            ("describe_volumes", "Volumes"),
            ("describe_instances", "Reservations"),
        ):
            assert len(getattr(aws.ec2, operation)(Filters=[ours])[items]) == 1, operation

    def test_create_tags_and_delete_tags_change_tags(self, aws: Aws, net: Net) -> None:
        (made,) = aws.run(net)
        both = [made["InstanceId"], net.vpc]
        aws.ec2.create_tags(Resources=both, Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
        aws.ec2.delete_tags(Resources=both, Tags=[{"Key": "a"}, {"Key": "b", "Value": "other"}])
        assert aws.instance(made["InstanceId"])["Tags"] == [{"Key": "b", "Value": "2"}]
        assert aws.ec2.describe_vpcs(VpcIds=[net.vpc])["Vpcs"][0]["Tags"] == [{"Key": "b", "Value": "2"}]

    @pytest.mark.parametrize(
        ("kind", "tags", "code"),
        [
            ("instance", [{"Key": "a", "Value": "1"}], "InvalidParameterValue"),
            ("vpc", [{"Key": "aws:a", "Value": "1"}], "InvalidParameterValue"),
            ("vpc", [{"Key": "a", "Value": "1" * 257}], "InvalidParameterValue"),
            ("vpc", [{"Key": str(number), "Value": ""} for number in range(51)], "TagLimitExceeded"),
        ],
    )
    def test_create_vpc_refuses_invalid_tags(
        self, aws: Aws, kind: str, tags: list[dict[str, str]], code: str
    ) -> None:
        with refused(code):
            aws.ec2.create_vpc(
                CidrBlock="10.9.0.0/16", TagSpecifications=[{"ResourceType": kind, "Tags": tags}]
            )


class TestLag:
    def test_list_lag_hides_new_network_resources(self, aws: Aws) -> None:
        aws.cloud.settings(list_lag_s=600)
        net = aws.net()
        with refused("InvalidVpcID.NotFound", text=net.vpc):
            aws.ec2.describe_vpcs(VpcIds=[net.vpc])
        with refused("InvalidSubnetID.NotFound", text=net.subnet):
            aws.ec2.describe_subnets(SubnetIds=[net.subnet])
        assert net.group not in _groups(aws)
        assert [entry["IsDefault"] for entry in aws.ec2.describe_vpcs()["Vpcs"]] == [True]
        aws.cloud.settings(speed=10_000)
        until(lambda: net.group in _groups(aws))
        assert len(aws.ec2.describe_vpcs(VpcIds=[net.vpc])["Vpcs"]) == 1
        assert len(aws.ec2.describe_subnets(SubnetIds=[net.subnet])["Subnets"]) == 1

    def test_use_lag_refuses_a_resource_just_created(self, aws: Aws) -> None:
        aws.cloud.settings(use_lag_s=600)
        vpc = aws.ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
        with refused("InvalidVpcID.NotFound", text=vpc):
            aws.subnet(vpc, "us-east-1a", "10.7.0.0/24")
        aws.cloud.settings(speed=10_000)
        time.sleep(0.06)
        assert aws.subnet(vpc, "us-east-1a", "10.7.0.0/24")


def _groups(aws: Aws) -> set[str]:
    return {entry["GroupId"] for entry in aws.ec2.describe_security_groups()["SecurityGroups"]}
