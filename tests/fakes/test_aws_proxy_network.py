"""The fake EC2: networks, the resources that block their deletion, and their limits."""

from typing import Any

import pytest

from provision.ssh_keys import new_key
from tests.fakes.aws_proxy.user import Aws, Net, refused, until

pytest_plugins = ["tests.fakes.aws_proxy.fixtures"]


def gateway(aws: Aws, vpc: str) -> str:
    name: str = aws.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    aws.ec2.attach_internet_gateway(InternetGatewayId=name, VpcId=vpc)
    return name


def nic(net: Net, **fields: Any) -> dict[str, Any]:
    return {"DeviceIndex": 0, "SubnetId": net.subnet, "Groups": [net.group]} | fields


class TestDeletion:
    def test_network_deletion_is_refused_until_interfaces_are_gone(self, aws: Aws, net: Net) -> None:
        igw = gateway(aws, net.vpc)
        (made,) = aws.run(NetworkInterfaces=[nic(net, AssociatePublicIpAddress=True)])
        name = made["InstanceId"]
        until(lambda: aws.state(name) == "running")
        with refused("DependencyViolation", text=f"Network {net.vpc} has some mapped public address"):
            aws.ec2.detach_internet_gateway(InternetGatewayId=igw, VpcId=net.vpc)
        _still_in_use(aws, net)
        aws.cloud.settings(terminate_s=600, speed=1000)
        aws.end(name)
        aws.cloud.settings(speed=1)
        # The instance is gone, but its network interface's subnet and group can't be deleted for a while.
        _still_in_use(aws, net)
        aws.cloud.settings(speed=1000)
        until(lambda: not aws.ec2.describe_network_interfaces()["NetworkInterfaces"])
        aws.ec2.delete_subnet(SubnetId=net.subnet)
        aws.ec2.delete_security_group(GroupId=net.group)
        with refused("DependencyViolation", text=net.vpc):
            aws.ec2.delete_vpc(VpcId=net.vpc)
        with refused("DependencyViolation", text=igw):
            aws.ec2.delete_internet_gateway(InternetGatewayId=igw)
        aws.ec2.detach_internet_gateway(InternetGatewayId=igw, VpcId=net.vpc)
        aws.ec2.delete_internet_gateway(InternetGatewayId=igw)
        aws.ec2.delete_vpc(VpcId=net.vpc)
        assert all(entry.get("default") for entry in aws.cloud.state()["resources"])

    def test_delete_security_group_refuses_a_referenced_group(self, aws: Aws, net: Net) -> None:
        other = aws.ec2.create_security_group(VpcId=net.vpc, GroupName="o", Description="o")["GroupId"]
        local = _rule(net.group)
        aws.ec2.authorize_security_group_ingress(GroupId=net.group, IpPermissions=[local])
        aws.ec2.authorize_security_group_egress(GroupId=other, IpPermissions=[local])
        with refused("DependencyViolation", text=f"resource {net.group} has a dependent object"):
            aws.ec2.delete_security_group(GroupId=net.group)
        aws.ec2.revoke_security_group_egress(GroupId=other, IpPermissions=[local])
        aws.ec2.delete_security_group(GroupId=net.group)

    def test_route_tables_refuse_wrong_gateways_and_second_associations(self, aws: Aws, net: Net) -> None:
        table = aws.ec2.create_route_table(VpcId=net.vpc)["RouteTable"]["RouteTableId"]
        loose = aws.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        for name, code in ((loose, "InvalidParameterValue"), ("igw-0", "InvalidGatewayID.NotFound")):
            with refused(code, text=name):
                aws.ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=name)
        igw = gateway(aws, net.vpc)
        aws.ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=igw)
        with refused("InvalidParameterValue", text="already has an internet gateway"):
            aws.ec2.attach_internet_gateway(InternetGatewayId=loose, VpcId=net.vpc)
        association = aws.ec2.associate_route_table(RouteTableId=table, SubnetId=net.subnet)["AssociationId"]
        again = aws.ec2.associate_route_table(RouteTableId=table, SubnetId=net.subnet)["AssociationId"]
        assert again == association
        other = aws.ec2.create_route_table(VpcId=net.vpc)["RouteTable"]["RouteTableId"]
        with refused("Resource.AlreadyAssociated", text=other):
            aws.ec2.associate_route_table(RouteTableId=other, SubnetId=net.subnet)
        with refused("DependencyViolation", text=table):
            aws.ec2.delete_route_table(RouteTableId=table)
        aws.ec2.disassociate_route_table(AssociationId=association)
        aws.ec2.delete_route_table(RouteTableId=table)

    def test_placement_group_refuses_duplicates_and_deletion_in_use(self, aws: Aws, net: Net) -> None:
        aws.ec2.create_placement_group(GroupName="tight", Strategy="cluster")
        with refused("InvalidPlacementGroup.Duplicate", text="'tight'"):
            aws.ec2.create_placement_group(GroupName="tight", Strategy="cluster")
        (made,) = aws.run(net, Placement={"GroupName": "tight"})
        with refused("InvalidPlacementGroup.InUse", text="'tight'"):
            aws.ec2.delete_placement_group(GroupName="tight")
        aws.end(made["InstanceId"])
        aws.ec2.delete_placement_group(GroupName="tight")
        with refused("InvalidPlacementGroup.Unknown"):
            aws.ec2.delete_placement_group(GroupName="tight")

    def test_volume_and_interface_in_use_are_not_deletable(self, aws: Aws, net: Net) -> None:
        volume = aws.ec2.create_volume(AvailabilityZone="us-east-1a", Size=9)["VolumeId"]
        local = aws.ec2.create_network_interface(SubnetId=net.subnet)["NetworkInterface"]
        with refused("DependencyViolation", text=net.subnet):
            aws.ec2.delete_subnet(SubnetId=net.subnet)
        (made,) = aws.run(net)
        disk = made["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
        with refused("VolumeInUse", text=disk):
            aws.ec2.delete_volume(VolumeId=disk)
        with refused("InvalidParameterValue", text="in use"):
            aws.ec2.delete_network_interface(
                NetworkInterfaceId=made["NetworkInterfaces"][0]["NetworkInterfaceId"]
            )
        aws.ec2.delete_volume(VolumeId=volume)
        aws.ec2.delete_network_interface(NetworkInterfaceId=local["NetworkInterfaceId"])
        aws.end(made["InstanceId"])
        assert not [entry for entry in aws.cloud.state()["resources"] if entry["kind"] == "volume"]


def _still_in_use(aws: Aws, net: Net) -> None:
    with refused("DependencyViolation", text=net.group):
        aws.ec2.delete_security_group(GroupId=net.group)
    with refused("DependencyViolation", text=net.subnet):
        aws.ec2.delete_subnet(SubnetId=net.subnet)
    with refused("DependencyViolation", text=net.vpc):
        aws.ec2.delete_vpc(VpcId=net.vpc)


def _rule(group: str) -> dict[str, Any]:
    return {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 9, "UserIdGroupPairs": [{"GroupId": group}]}


class TestLimits:
    def test_create_calls_refuse_duplicates(self, aws: Aws, net: Net) -> None:
        with refused("InvalidGroup.Duplicate", text="nodes"):
            aws.ec2.create_security_group(VpcId=net.vpc, GroupName="nodes", Description="n")
        aws.ec2.import_key_pair(KeyName="k", PublicKeyMaterial=_key())
        with refused("InvalidKeyPair.Duplicate", text="k"):
            aws.ec2.import_key_pair(KeyName="k", PublicKeyMaterial=_key())
        rule = _rule(net.group)
        aws.ec2.authorize_security_group_ingress(GroupId=net.group, IpPermissions=[rule])
        with refused("InvalidPermission.Duplicate"):
            aws.ec2.authorize_security_group_ingress(GroupId=net.group, IpPermissions=[rule])
        with refused("InvalidSubnet.Conflict"):
            aws.subnet(net.vpc, "us-east-1b", "10.7.0.0/25")


def _key() -> bytes:
    return f"{new_key().public} somebody@somewhere".encode()


class TestWording:
    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"GroupName": "sg-mine"}, "sg-*"),
            ({"Description": "the cluster's"}, "GroupDescription"),
            ({"Description": "café"}, "ASCII"),
            ({"GroupName": "n" * 256}, "256"),
        ],
    )
    def test_create_security_group_refuses_invalid_names(
        self, aws: Aws, net: Net, fields: dict[str, str], text: str
    ) -> None:
        with refused("InvalidParameterValue", text=text):
            aws.ec2.create_security_group(**{"VpcId": net.vpc, "GroupName": "n", "Description": "d"} | fields)

    def test_authorize_ingress_refuses_an_invalid_description(self, aws: Aws, net: Net) -> None:
        rule = _rule(net.group)
        rule["UserIdGroupPairs"][0]["Description"] = "it's"
        with refused("InvalidParameterValue", text="rule description"):
            aws.ec2.authorize_security_group_ingress(GroupId=net.group, IpPermissions=[rule])

    def test_create_subnet_refuses_a_too_small_range(self, aws: Aws, net: Net) -> None:
        with refused("InvalidSubnet.Range", text="10.7.1.0/29"):
            aws.subnet(net.vpc, "us-east-1b", "10.7.1.0/29")


class TestUnknown:
    @pytest.mark.parametrize(
        ("operation", "parameter", "name", "code"),
        [
            ("describe_vpcs", "VpcIds", "vpc-01", "InvalidVpcID.NotFound"),
            ("describe_subnets", "SubnetIds", "subnet-01", "InvalidSubnetID.NotFound"),
            ("describe_security_groups", "GroupIds", "sg-01", "InvalidGroup.NotFound"),
            (
                "describe_internet_gateways",
                "InternetGatewayIds",
                "igw-01",
                "InvalidInternetGatewayID.NotFound",
            ),
            ("describe_route_tables", "RouteTableIds", "rtb-01", "InvalidRouteTableID.NotFound"),
            ("describe_key_pairs", "KeyNames", "nobody", "InvalidKeyPair.NotFound"),
            ("describe_placement_groups", "GroupNames", "none", "InvalidPlacementGroup.Unknown"),
            ("describe_volumes", "VolumeIds", "vol-01", "InvalidVolume.NotFound"),
            (
                "describe_network_interfaces",
                "NetworkInterfaceIds",
                "eni-01",
                "InvalidNetworkInterfaceID.NotFound",
            ),
        ],
    )
    def test_describe_calls_refuse_unknown_ids(
        self, aws: Aws, operation: str, parameter: str, name: str, code: str
    ) -> None:
        with refused(code, text=f"'{name}'"):
            getattr(aws.ec2, operation)(**{parameter: [name]})

    def test_unimplemented_call_answers_unsupported_operation(self, aws: Aws) -> None:
        with refused("UnsupportedOperation", text="moto"):
            aws.ec2.describe_capacity_reservations()


def test_default_vpc_exists_and_takes_launches(aws: Aws) -> None:
    (vpc,) = aws.ec2.describe_vpcs()["Vpcs"]
    assert vpc["IsDefault"] and len(aws.ec2.describe_subnets()["Subnets"]) == 6
    assert {entry["default"] for entry in aws.cloud.state()["resources"]} == {True}
    (made,) = aws.run()
    assert made["VpcId"] == vpc["VpcId"]
