"""The fake EC2: NAT gateways with their addresses, and gateway endpoints."""

from typing import Any

import pytest

from tests.fakes.aws_proxy.user import Aws, Net, refused, until

pytest_plugins = ["tests.fakes.aws_proxy.fixtures"]


@pytest.fixture
def gateway(aws: Aws, net: Net) -> str:
    """Return the internet gateway of `net`."""
    name: str = aws.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    aws.ec2.attach_internet_gateway(InternetGatewayId=name, VpcId=net.vpc)
    return name


def address(aws: Aws) -> str:
    return aws.ec2.allocate_address(Domain="vpc")["AllocationId"]


def make(aws: Aws, net: Net, **more: Any) -> dict[str, Any]:
    request = {"SubnetId": net.subnet, "AllocationId": more.pop("AllocationId", None) or address(aws), **more}
    return aws.ec2.create_nat_gateway(**request)["NatGateway"]


def shown(aws: Aws, name: str) -> dict[str, Any]:
    (result,) = aws.ec2.describe_nat_gateways(NatGatewayIds=[name])["NatGateways"]
    return dict(result)


def in_state(aws: Aws, name: str, state: str) -> dict[str, Any]:
    until(lambda: shown(aws, name)["State"] == state)
    return shown(aws, name)


class TestNatGateways:
    def test_nat_gateway_becomes_available_and_deleted_with_delay(
        self, aws: Aws, net: Net, gateway: str
    ) -> None:
        aws.cloud.settings(nat_ready_s=60, nat_gone_s=120)
        made = make(aws, net)
        name = made["NatGatewayId"]
        assert made["State"] == shown(aws, name)["State"] == "pending"
        aws.cloud.settings(speed=1000)
        (has,) = in_state(aws, name, "available")["NatGatewayAddresses"]
        assert has["PublicIp"]
        assert has["PrivateIp"].startswith("10.7.0.")
        aws.cloud.settings(speed=1)
        aws.ec2.delete_nat_gateway(NatGatewayId=name)
        aws.ec2.delete_nat_gateway(NatGatewayId=name)
        assert shown(aws, name)["State"] == "deleting"
        assert aws.ec2.describe_addresses()["Addresses"][0]["AssociationId"]
        aws.cloud.settings(speed=1000)
        in_state(aws, name, "deleted")
        assert "AssociationId" not in aws.ec2.describe_addresses()["Addresses"][0]
        with refused("NatGatewayNotFound"):
            aws.ec2.delete_nat_gateway(NatGatewayId=name)

    def test_nat_gateway_blocks_deletion_of_what_it_uses(self, aws: Aws, net: Net, gateway: str) -> None:
        name = make(aws, net)["NatGatewayId"]
        (has,) = in_state(aws, name, "available")["NatGatewayAddresses"]
        with refused("AuthFailure"):
            aws.ec2.release_address(AllocationId=has["AllocationId"])
        with refused("DependencyViolation"):
            aws.ec2.delete_subnet(SubnetId=net.subnet)
        with refused("DependencyViolation", text="mapped public address"):
            aws.ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=net.vpc)
        (interface,) = aws.ec2.describe_network_interfaces(
            Filters=[{"Name": "subnet-id", "Values": [net.subnet]}]
        )["NetworkInterfaces"]
        assert interface["Description"] == f"Interface for NAT Gateway {name}"
        aws.ec2.delete_nat_gateway(NatGatewayId=name)
        in_state(aws, name, "deleted")
        aws.ec2.release_address(AllocationId=has["AllocationId"])
        aws.ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=net.vpc)
        aws.ec2.delete_subnet(SubnetId=net.subnet)

    def test_nat_gateway_without_internet_gateway_fails_late(self, aws: Aws, net: Net) -> None:
        failed = in_state(aws, make(aws, net)["NatGatewayId"], "failed")
        assert failed["FailureCode"] == "Gateway.NotAttached"


class TestEndpoints:
    def test_route_table_takes_one_endpoint_per_service(self, aws: Aws, net: Net) -> None:
        tables = [aws.ec2.create_route_table(VpcId=net.vpc)["RouteTable"]["RouteTableId"] for _ in range(2)]
        request: dict[str, Any] = {"VpcId": net.vpc, "ServiceName": "com.amazonaws.us-east-1.s3"}
        made = aws.ec2.create_vpc_endpoint(**request, RouteTableIds=tables[:1], ClientToken="t")[
            "VpcEndpoint"
        ]
        name = made["VpcEndpointId"]
        again = aws.ec2.create_vpc_endpoint(**request, RouteTableIds=tables[:1], ClientToken="t")
        assert again["VpcEndpoint"]["VpcEndpointId"] == name
        with refused("RouteAlreadyExists"):
            aws.ec2.create_vpc_endpoint(**request, RouteTableIds=tables)
        aws.ec2.modify_vpc_endpoint(VpcEndpointId=name, AddRouteTableIds=tables)
        for table in aws.ec2.describe_route_tables(RouteTableIds=tables)["RouteTables"]:
            assert name in {route.get("GatewayId") for route in table["Routes"]}
        aws.ec2.delete_route_table(RouteTableId=tables[0])
        (left,) = aws.ec2.describe_vpc_endpoints()["VpcEndpoints"]
        assert left["RouteTableIds"] == tables[1:]

    def test_delete_vpc_refuses_while_an_endpoint_exists(self, aws: Aws, net: Net) -> None:
        vpc = aws.ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
        service = "com.amazonaws.us-east-1.s3"
        name = aws.ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=service)["VpcEndpoint"]["VpcEndpointId"]
        with refused("DependencyViolation"):
            aws.ec2.delete_vpc(VpcId=vpc)
        assert aws.ec2.delete_vpc_endpoints(VpcEndpointIds=[name])["Unsuccessful"] == []
        aws.ec2.delete_vpc(VpcId=vpc)
        (report,) = aws.ec2.delete_vpc_endpoints(VpcEndpointIds=[name])["Unsuccessful"]
        assert report["Error"]["Code"] == "InvalidVpcEndpointId.NotFound"

    def test_create_vpc_endpoint_refuses_an_unknown_service(self, aws: Aws, net: Net) -> None:
        with refused("InvalidServiceName"):
            aws.ec2.create_vpc_endpoint(VpcId=net.vpc, ServiceName="com.amazonaws.eu-west-1.s3")
