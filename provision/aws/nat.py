"""The way out of private subnets: one NAT gateway a VPC with its Elastic IP, and a gateway endpoint for S3.

Both kinds of gateway carry a token in their create call. A NAT gateway costs money from its creation to its end,
so there is one for all zones, and it goes with the last private cluster.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from provision.aws import requests
from provision.aws.making import Item, Maker, Read, lowest, named
from provision.aws.requests import Request
from provision.cloud import CloudCluster, Ensure
from provision.errors import CloudError, Exists, TokenSpent
from provision.retry import PollWaits

READY_TIMEOUT_S = 600.0
"""AWS takes one to three minutes."""
USABLE = ("pending", "available")


def ensure_nat(
    maker: Maker,
    cluster: CloudCluster,
    vpc: str,
    ensure: Ensure,
    known: Sequence[Item],
    *,
    read: Read,
    addresses: Read,
    public_subnet: Callable[[], str],
) -> str:
    """The VPC's NAT gateway, which may be pending: see `wait_available`.

    `public_subnet` makes the subnet that a new one stands in; neither it nor an address is made for one that is
    there.
    """

    def create(token: str) -> str:
        subnet = public_subnet()
        address = _ensure_address(maker, cluster, ensure, addresses)
        return _create(maker, requests.nat_gateway(cluster, subnet, address, token))

    return maker.ensure(
        "nat-gateway",
        ensure,
        known,
        read=read,
        pick=partial(_usable, vpc=vpc),
        field="NatGatewayId",
        create=create,
        shared=True,
    )


def _usable(items: Sequence[Item], vpc: str) -> Item | None:
    return lowest([i for i in items if i["VpcId"] == vpc and i["State"] in USABLE], "NatGatewayId")


def _create(maker: Maker, request: Request) -> str:
    made = maker.api.call("create_nat_gateway", again=True, settle=True, **request)["NatGateway"]
    if made["State"] not in USABLE:
        raise TokenSpent(
            f"The token of the NAT gateway {made['NatGatewayId']} is spent: that one is {made['State']}.",
            operation="CreateNatGateway",
        )
    return str(made["NatGatewayId"])


def _ensure_address(maker: Maker, cluster: CloudCluster, ensure: Ensure, read: Read) -> str:
    """An Elastic IP of ours that nothing has."""
    return maker.ensure(
        "elastic-ip",
        ensure,
        read(),
        read=read,
        pick=lambda items: lowest([i for i in items if "AssociationId" not in i], "AllocationId"),
        field="AllocationId",
        create=lambda _: maker.create("allocate_address", requests.elastic_ip(cluster), None, "AllocationId"),
        shared=True,
    )


def wait_available(maker: Maker, nat: str, vpc: str, *, read: Read) -> str:
    """Wait until the NAT gateway works. Returns its id, or another's of ours that works where this one failed.

    Raises CloudError with AWS's reason where it failed, and at the deadline.
    """
    began = maker.clock.now()
    waits = PollWaits()
    while True:
        items = read()
        passed_s = maker.clock.now() - began
        item = named(items, "NatGatewayId", nat)
        if item is None and passed_s > maker.consistency_s:
            item = {"NatGatewayId": nat, "State": "gone"}
        state = str(item["State"]) if item else "pending"
        if state == "available":
            return nat
        if item is not None and state != "pending":
            # Two processes may have taken the same address: then one of the gateways fails.
            other = _usable(items, vpc)
            if other is None:
                raise _failed(item)
            nat = str(other["NatGatewayId"])
        if passed_s > READY_TIMEOUT_S:
            raise CloudError(
                f"The NAT gateway {nat} was still pending after {READY_TIMEOUT_S / 60:.0f} minutes. It costs money: "
                "run the command again, which goes on with it, or `gpuctl down`, which removes it.",
                operation="CreateNatGateway",
                code="NotReady",
            )
        maker.clock.sleep(waits.next())


def _failed(item: Item) -> CloudError:
    reason = str(item.get("FailureMessage") or f"it is {item['State']}").rstrip(".")
    return CloudError(
        f"The NAT gateway {item['NatGatewayId']} did not come up: {reason}. Run the command again, which makes "
        "another one; `gpuctl down` removes what is left.",
        operation="CreateNatGateway",
        code=str(item.get("FailureCode") or item["State"]),
    )


def ensure_endpoint(
    maker: Maker,
    cluster: CloudCluster,
    vpc: str,
    table: str,
    ensure: Ensure,
    known: Sequence[Item],
    *,
    read: Read,
) -> None:
    """Let the table lead to S3 without the NAT gateway."""
    seen = list(known)

    def read_again() -> list[Any]:
        seen[:] = read()
        return list(seen)

    def pick(items: Sequence[Item]) -> Item | None:
        service = requests.s3_service(cluster)
        return lowest(
            [
                item
                for item in items
                if (item["VpcId"], item["ServiceName"]) == (vpc, service) and item["State"].lower() in USABLE
            ],
            "VpcEndpointId",
        )

    endpoint = maker.ensure(
        "vpc-endpoint",
        ensure,
        known,
        read=read_again,
        pick=pick,
        field="VpcEndpointId",
        create=lambda token: maker.create(
            "create_vpc_endpoint",
            requests.s3_endpoint(cluster, vpc, table, token),
            "VpcEndpoint",
            "VpcEndpointId",
            again=True,
        ),
        shared=True,
    )
    item = named(seen, "VpcEndpointId", endpoint)
    # One that was never seen has just been made for this table.
    if item is not None and table not in item.get("RouteTableIds", []):
        try:
            maker.api.call(
                "modify_vpc_endpoint",
                again=True,
                settle=True,
                VpcEndpointId=endpoint,
                AddRouteTableIds=[table],
            )
        except Exists:
            return  # another endpoint serves the table
