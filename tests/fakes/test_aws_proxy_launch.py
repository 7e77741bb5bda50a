"""The fake EC2: launches, their client tokens, the capacity for them, and their permitted parameters."""

import json
from typing import Any

import pytest

from tests.fakes.aws_proxy.user import Aws, Net, refused, until

pytest_plugins = ["tests.fakes.aws_proxy.fixtures"]


def ids(instances: list[dict[str, Any]]) -> list[str]:
    return [instance["InstanceId"] for instance in instances]


class TestClientTokens:
    def test_client_token_repeats_the_same_launch(self, aws: Aws, net: Net) -> None:
        first = aws.run(net, 2, ClientToken="t")
        until(lambda: aws.state(first[0]["InstanceId"]) == "running")
        again = aws.run(net, 2, ClientToken="t")
        assert ids(again) == ids(first)
        assert {entry["State"]["Name"] for entry in again} == {"running"}
        assert ids(aws.run(net, 2, ClientToken="T")) != ids(first)
        assert ids(aws.instances(Filters=[{"Name": "client-token", "Values": ["t"]}])) == ids(first)
        assert [entry["AmiLaunchIndex"] for entry in aws.instances()] == [0, 1, 0, 1]

    def test_client_token_refuses_another_request(self, aws: Aws, net: Net) -> None:
        aws.run(net, ClientToken="t")
        for change in ({"InstanceType": "g5.xlarge"}, {"UserData": "x"}, {"MinCount": 2, "MaxCount": 2}):
            with refused("IdempotentParameterMismatch"):
                aws.run(net, ClientToken="t", **change)
        assert len(aws.instances()) == 1

    def test_client_token_counts_per_zone(self, aws: Aws, net: Net) -> None:
        other = aws.subnet(net.vpc, "us-east-1b", "10.7.1.0/24")
        assert ids(aws.run(net, ClientToken="t")) != ids(aws.run(net, ClientToken="t", SubnetId=other))

    def test_client_token_is_refused_once_its_instances_terminated(self, aws: Aws, net: Net) -> None:
        made = ids(aws.run(net, 2, ClientToken="t"))
        aws.end(made[0])
        assert ids(aws.run(net, 2, ClientToken="t")) == made
        aws.end(made[1])
        with refused("IdempotentInstanceTerminated"):
            aws.run(net, 2, ClientToken="t")

    def test_client_token_stays_usable_after_missing_capacity(self, aws: Aws, net: Net) -> None:
        aws.cloud.settings(capacity={"g5.12xlarge": {"*": 0}})
        with refused("InsufficientInstanceCapacity", 500):
            aws.run(net, ClientToken="t")
        with refused("IdempotentParameterMismatch"):
            aws.run(net, ClientToken="t", InstanceType="g5.xlarge")
        aws.cloud.settings(capacity={})
        assert aws.run(net, ClientToken="t")

    def test_client_token_is_not_used_up_by_bad_and_dry_requests(self, aws: Aws, net: Net) -> None:
        with refused("InvalidAMIID.NotFound"):
            aws.run(net, ClientToken="t", ImageId="ami-0")
        with refused("DryRunOperation", 412):
            aws.run(net, ClientToken="t", DryRun=True)
        assert aws.run(net, ClientToken="t", InstanceType="g5.xlarge")
        with refused("InvalidParameterValue", text="64"):
            aws.run(net, ClientToken="t" * 65)

    def test_client_token_works_for_volumes_and_route_tables(self, aws: Aws) -> None:
        made = [
            aws.ec2.create_volume(AvailabilityZone="us-east-1a", Size=9, ClientToken="t") for _ in range(2)
        ]
        assert made[0]["VolumeId"] == made[1]["VolumeId"]
        with refused("IdempotentParameterMismatch"):
            aws.ec2.create_volume(AvailabilityZone="us-east-1a", Size=10, ClientToken="t")
        assert len(aws.ec2.describe_volumes()["Volumes"]) == 1
        vpc = aws.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        tables = [aws.ec2.create_route_table(VpcId=vpc, ClientToken="t")["RouteTable"] for _ in range(2)]
        assert tables[0]["RouteTableId"] == tables[1]["RouteTableId"]


class TestCapacity:
    def test_run_instances_respects_capacity_and_min_count(self, aws: Aws, net: Net) -> None:
        aws.cloud.settings(capacity={"g5.12xlarge": {"us-east-1a": 3}})
        with refused("InsufficientInstanceCapacity", 500, "g5.12xlarge capacity in the Availability Zone"):
            aws.run(net, 4)
        assert aws.instances() == []
        assert len(aws.run(net, MinCount=1, MaxCount=5)) == 3
        with refused("InsufficientInstanceCapacity", 500):
            aws.run(net)
        aws.end(*ids(aws.instances()))
        assert len(aws.run(net, 3)) == 3
        assert aws.cloud.state()["most_instances"] == 3

    def test_run_instances_refuses_a_type_the_zone_lacks(self, aws: Aws, net: Net) -> None:
        assert "us-east-1a" in _offered(aws, "g5.12xlarge")
        aws.cloud.settings(capacity={"g5.12xlarge": {"us-east-1a": -1}})
        assert "us-east-1a" not in _offered(aws, "g5.12xlarge")
        assert "us-east-1b" in _offered(aws, "g5.12xlarge")
        with refused("Unsupported", text="is not supported in your requested Availability Zone (us-east-1a)"):
            aws.run(net)
        with refused("Unsupported", text="choosing us-east-1c."):
            aws.run(net, InstanceType="p6-b200.48xlarge")

    def test_run_instances_refuses_a_full_subnet(self, aws: Aws, net: Net) -> None:
        tiny = Net(net.vpc, aws.subnet(net.vpc, "us-east-1a", "10.7.9.0/28"), net.group)
        with refused("InsufficientFreeAddressesInSubnet", text=tiny.subnet):
            aws.run(tiny, 12)
        assert len(aws.run(tiny, 11)) == 11
        (shown,) = aws.ec2.describe_subnets(SubnetIds=[tiny.subnet])["Subnets"]
        assert shown["AvailableIpAddressCount"] == 0


def _offered(aws: Aws, name: str) -> set[str]:
    filters = [{"Name": "instance-type", "Values": [name]}]
    result = aws.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=filters)
    return {entry["Location"] for entry in result["InstanceTypeOfferings"]}


class TestRequests:
    @pytest.mark.parametrize(
        ("change", "code", "text"),
        [
            ({"ImageId": "ami-0123"}, "InvalidAMIID.NotFound", "'[ami-0123]'"),
            ({"ImageId": "image"}, "InvalidAMIID.Malformed", "image"),
            ({"ImageId": None}, "MissingParameter", "ImageId"),
            ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound", "'nobody'"),
            ({"SecurityGroupIds": ["sg-0"]}, "InvalidGroup.NotFound", "'sg-0'"),
            ({"SubnetId": "subnet-0"}, "InvalidSubnetID.NotFound", "'subnet-0'"),
            ({"Placement": {"AvailabilityZone": "us-east-1b"}}, "InvalidParameterValue", "us-east-1a"),
            ({"Placement": {"AvailabilityZone": "eu-west-1a"}}, "InvalidParameterValue", "eu-west-1a"),
            ({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown", "'none'"),
            ({"MinCount": 2}, "InvalidParameterValue", "minCount"),
            (
                {"NetworkInterfaces": [{"DeviceIndex": 0}]},
                "InvalidParameterCombination",
                "Network interfaces",
            ),
            ({"UserData": "x" * 16385}, "InvalidParameterValue", "16384"),
            ({"InstanceMarketOptions": {"MarketType": "capacity-block"}}, "UnsupportedOperation", "spot"),
            (
                {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]},
                "InvalidBlockDeviceMapping",
                "expect size >= 75GB",
            ),
            (
                {
                    "BlockDeviceMappings": [
                        {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 8, "Throughput": 9}}
                    ]
                },
                "InvalidParameterCombination",
                "throughput",
            ),
        ],
    )
    def test_run_instances_refuses_bad_requests(
        self, aws: Aws, net: Net, change: dict[str, Any], code: str, text: str
    ) -> None:
        with refused(code, text=text):
            aws.run(net, **change)
        assert aws.cloud.state()["instances"] == []

    def test_run_instances_refuses_a_security_group_of_another_vpc(self, aws: Aws, net: Net) -> None:
        vpc = aws.ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
        other = aws.ec2.create_security_group(VpcId=vpc, GroupName="o", Description="o")["GroupId"]
        with refused("InvalidParameter", text="belong to different networks"):
            aws.run(net, SecurityGroupIds=[other])

    def test_run_instances_checks_efa_interfaces(self, aws: Aws, net: Net) -> None:
        nics = [_efa(net, card) for card in range(4)]
        (made,) = aws.run(InstanceType="p4d.24xlarge", NetworkInterfaces=nics)
        shown = [
            (nic["InterfaceType"], nic["Attachment"]["NetworkCardIndex"]) for nic in made["NetworkInterfaces"]
        ]
        assert shown == [("efa", 0), ("efa", 1), ("efa", 2), ("efa", 3)]
        for change, code, text in (
            ({"InstanceType": "g5.xlarge", "NetworkInterfaces": nics[:1]}, "Unsupported", "EFA"),
            (
                {"InstanceType": "p4d.24xlarge", "NetworkInterfaces": nics + nics[:1]},
                "InvalidParameterValue",
                "unique",
            ),
            (
                {"InstanceType": "p4d.24xlarge", "NetworkInterfaces": [*nics, _efa(net, 4)]},
                "InvalidParameterCombination",
                "network cards",
            ),
            (
                {
                    "InstanceType": "p4d.24xlarge",
                    "NetworkInterfaces": [nics[0] | {"AssociatePublicIpAddress": True}, nics[1]],
                },
                "InvalidParameterCombination",
                "multiple network interfaces",
            ),
        ):
            with refused(code, text=text):
                aws.run(**change)  # type: ignore[arg-type]

    def test_describe_instances_filters_and_paginates(self, aws: Aws, net: Net) -> None:
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "gpuctl", "Value": "a"}]}]
        ours = ids(aws.run(net, 7, TagSpecifications=tags))
        aws.run(net)
        for name, values, expected in (
            ("tag:gpuctl", ["a"], 7),
            ("tag:gpuctl", ["b", "a*"], 7),
            ("tag-key", ["gpuctl"], 7),
            ("instance-state-name", ["pending", "running"], 8),
            ("vpc-id", [net.vpc], 8),
            ("instance-type", ["p5.48xlarge"], 0),
            ("network-interface.subnet-id", [net.subnet], 8),
        ):
            assert len(aws.instances(Filters=[{"Name": name, "Values": values}])) == expected
        with refused("InvalidParameterValue", text="'nonsense' is invalid"):
            aws.instances(Filters=[{"Name": "nonsense", "Values": ["x"]}])
        pages = list(aws.ec2.get_paginator("describe_instances").paginate(MaxResults=5))
        assert len(pages) == 2
        assert len(aws.instances()) == 8
        aws.cloud.settings(reply_page_size=3)
        assert len(aws.instances()) == 3
        with refused("InvalidParameterCombination"):
            aws.ec2.describe_instances(InstanceIds=ours, MaxResults=5)


def _efa(net: Net, card: int) -> dict[str, Any]:
    return {
        "DeviceIndex": min(card, 1),
        "NetworkCardIndex": card,
        "InterfaceType": "efa",
        "SubnetId": net.subnet,
        "Groups": [net.group],
    }


def test_state_counts_the_most_instances_per_cluster(aws: Aws, net: Net) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "gpuctl-cluster-id", "Value": "c1"}]}]
    aws.end(*ids(aws.run(net, 2, TagSpecifications=tags)))
    aws.run(net, 1, TagSpecifications=tags)
    state = aws.cloud.state()
    assert (state["most_instances"], state["most_by_cluster"]) == (2, {"c1": 2})
    assert json.dumps(state)
