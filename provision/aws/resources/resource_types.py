"""The kinds of resources that there can be of ours besides instances: how each is listed, and how it is deleted."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of resource: how it is listed and deleted."""

    name: str
    stage: int
    list: str
    key: str
    id: str
    delete: str
    named: str | None = None
    """The field of its name, where that is no tag."""
    deleted_by_name: bool = False
    deleted_in_a_list: bool = False
    """The call takes several ids, and its answer has those that it refused."""
    which: Mapping[str, tuple[str, ...]] | None = None
    """Further filters."""
    attachable: bool = False
    """What is attached to a machine of its cluster goes with it, and is none of our resources."""
    slow: bool = False
    """It is still there for a while after AWS has said that it deletes it."""
    ends_within_s: float = 0.0
    """How long that can be, where it is more than some seconds."""
    holds: str | None = None
    """The filter for the network interfaces that keep it from being deleted."""


KINDS: tuple[Kind, ...] = (
    Kind(
        name="spot-request",
        stage=0,
        list="describe_spot_instance_requests",
        key="SpotInstanceRequests",
        id="SpotInstanceRequestId",
        delete="cancel_spot_instance_requests",
        deleted_in_a_list=True,
        which={"state": ("open",)},
    ),
    Kind(
        name="network-interface",
        stage=0,
        list="describe_network_interfaces",
        key="NetworkInterfaces",
        id="NetworkInterfaceId",
        delete="delete_network_interface",
        attachable=True,
    ),
    Kind(
        name="volume",
        stage=0,
        list="describe_volumes",
        key="Volumes",
        id="VolumeId",
        delete="delete_volume",
        which={"status": ("creating", "available", "in-use", "error")},
        attachable=True,
        slow=True,
    ),
    Kind(
        name="security-group",
        stage=1,
        list="describe_security_groups",
        key="SecurityGroups",
        id="GroupId",
        delete="delete_security_group",
        named="GroupName",
        holds="group-id",
    ),
    Kind(
        name="key-pair",
        stage=1,
        list="describe_key_pairs",
        key="KeyPairs",
        id="KeyPairId",
        delete="delete_key_pair",
        named="KeyName",
        deleted_by_name=True,
    ),
    Kind(
        name="placement-group",
        stage=1,
        list="describe_placement_groups",
        key="PlacementGroups",
        id="GroupId",
        delete="delete_placement_group",
        named="GroupName",
        deleted_by_name=True,
        which={"state": ("pending", "available", "deleting")},
        slow=True,
    ),
    Kind(
        name="nat-gateway",
        stage=2,
        list="describe_nat_gateways",
        key="NatGateways",
        id="NatGatewayId",
        delete="delete_nat_gateway",
        which={"state": ("pending", "failed", "available", "deleting")},
        slow=True,
        ends_within_s=600.0,
    ),
    Kind(
        name="vpc-endpoint",
        stage=2,
        list="describe_vpc_endpoints",
        key="VpcEndpoints",
        id="VpcEndpointId",
        delete="delete_vpc_endpoints",
        deleted_in_a_list=True,
        which={
            "vpc-endpoint-state": (
                "pendingAcceptance",
                "pending",
                "available",
                "deleting",
                "rejected",
                "failed",
            )
        },
        slow=True,
    ),
    # A NAT gateway has its address until it is gone, and an address keeps the internet gateway attached.
    Kind(
        name="elastic-ip",
        stage=3,
        list="describe_addresses",
        key="Addresses",
        id="AllocationId",
        delete="release_address",
    ),
    Kind(
        name="subnet",
        stage=3,
        list="describe_subnets",
        key="Subnets",
        id="SubnetId",
        delete="delete_subnet",
        holds="subnet-id",
    ),
    Kind(
        name="route-table",
        stage=4,
        list="describe_route_tables",
        key="RouteTables",
        id="RouteTableId",
        delete="delete_route_table",
    ),
    Kind(
        name="internet-gateway",
        stage=4,
        list="describe_internet_gateways",
        key="InternetGateways",
        id="InternetGatewayId",
        delete="delete_internet_gateway",
    ),
    Kind(
        name="vpc",
        stage=5,
        list="describe_vpcs",
        key="Vpcs",
        id="VpcId",
        delete="delete_vpc",
        holds="vpc-id",
    ),
)
"""In the order in which they can be deleted."""
