"""The kinds of our resources, apart from instances, with the calls that list and delete them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of resource, with its calls."""

    name: str
    stage: int
    list: str
    key: str
    id: str
    delete: str
    named: str | None = None
    """The field of its name. `None`: its name is a tag."""
    deleted_by_name: bool = False
    deleted_in_a_list: bool = False
    """Whether the call takes several ids, and its answer has the refused ones."""
    filters: Mapping[str, tuple[str, ...]] | None = None
    """Further filters of the list."""
    attachable: bool = False
    """Whether it can be attached to a machine, and ends with it then: no resource of its own."""
    slow: bool = False
    """Whether it exists for a while after AWS's answer to the deletion."""
    ends_within_s: float = 0.0
    """Longest time of that, if it is more than some seconds."""
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
        filters={"state": ("open",)},
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
        filters={"status": ("creating", "available", "in-use", "error")},
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
        filters={"state": ("pending", "available", "deleting")},
        slow=True,
    ),
    Kind(
        name="nat-gateway",
        stage=2,
        list="describe_nat_gateways",
        key="NatGateways",
        id="NatGatewayId",
        delete="delete_nat_gateway",
        filters={"state": ("pending", "failed", "available", "deleting")},
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
        filters={
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
