"""The way out of private subnets: one NAT gateway a VPC with its Elastic IP, and a gateway endpoint for S3.

Both kinds of gateway carry a token in their create call. A NAT gateway costs money from its creation to its end,
so there is one for all zones, and it goes with the last private cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from provision.aws import requests
from provision.aws.api import Item
from provision.aws.infrastructure.find_or_create import Read, ResourceMaker, lowest, named
from provision.aws.infrastructure.subnets import leads_to
from provision.aws.requests import Request
from provision.aws.resources import deletion, listing
from provision.errors import Blocked, CloudError, Exists, TokenSpent
from provision.records import CloudCluster, Resource
from provision.rented.interface import Ensure
from provision.waiting import CLOSE_SHARE, PollWaits, Progress, Say, quiet

READY_TIMEOUT_S = 600.0
"""AWS takes one to three minutes."""
GONE_TIMEOUT_S = 600.0
TOLD_EVERY_S = 30.0
USABLE = ("pending", "available")
ADDRESS_TAKEN = "Resource.AlreadyAssociated"
"""The code of a gateway that failed as another one has its address."""


def ensure_nat(
    maker: ResourceMaker,
    cluster: CloudCluster,
    vpc: str,
    ensure: Ensure,
    known: Sequence[Item],
    *,
    read: Read,
    addresses: Read,
    public_subnets: Mapping[str, Callable[[], str]],
) -> tuple[str, bool]:
    """The VPC's NAT gateway, which may be pending: see `wait_available`; and whether it was made now.

    `public_subnets` make the subnet that a new one stands in, by their zones in the order in which they are
    tried; neither it nor an address is made for one that is there.
    """
    made: set[str] = set()

    def create(token: str) -> str:
        address = _ensure_address(maker, cluster, ensure, addresses)
        refused: CloudError | None = None
        for zone, public_subnet in public_subnets.items():
            if refused is not None:
                ensure.say(f"AWS makes no NAT gateway there now: trying {zone} …")
            # A token stands for one request.
            request = requests.nat_gateway(cluster, public_subnet(), address, f"{token}-{zone}")
            try:
                gateway = _create(maker, request)
            except CloudError as error:
                if error.code != "NotAvailableInZone":
                    raise
                refused = error
            else:
                made.add(gateway)
                return gateway
        assert refused is not None, "there is a zone"
        raise refused

    nat = maker.ensure(
        "nat-gateway",
        ensure,
        known,
        read=read,
        pick=partial(_usable, vpc=vpc),
        field="NatGatewayId",
        create=create,
        shared=True,
    )
    return nat, nat in made


def usable(items: Sequence[Item], vpc: str) -> list[str]:
    """Ids of those that work, or will, the lowest first."""
    return sorted(str(i["NatGatewayId"]) for i in items if i["VpcId"] == vpc and i["State"] in USABLE)


def _usable(items: Sequence[Item], vpc: str) -> Item | None:
    return named(items, "NatGatewayId", next(iter(usable(items, vpc)), ""))


def agree(
    maker: ResourceMaker, nat: str, vpc: str, table: Item | None, *, made: bool, read: Read, say: Say = quiet
) -> str:
    """The NAT gateway that everybody takes where a race has made several; it works.

    That is the one that the route table leads to, as machines use it, else the lowest. `made`: `nat` is this
    command's own; where it is not the one, it is removed with its address.
    """
    items = read()
    ids = usable(items, vpc)
    used = [name for name in ids if table is not None and leads_to(table, {name})]
    chosen = next(iter(used or ids), nat)
    if chosen == nat:
        return nat
    chosen = wait_available(maker, chosen, vpc, read=read, say=say)
    if made and chosen != nat:
        _remove(maker, nat, named(items, "NatGatewayId", nat), say)
    return chosen


def _remove(maker: ResourceMaker, nat: str, item: Item | None, say: Say) -> None:
    """Remove a gateway that nothing uses, and its address. Where that fails it is told, and others use theirs."""
    say(f"another NAT gateway was made at the same time, and serves all: removing {nat} …")
    ids = [nat, *(str(a["AllocationId"]) for a in (item or {}).get("NatGatewayAddresses", []))]
    try:
        found = {resource.id: resource for resource in listing.resources(maker.api)}
        for name in ids:
            if name in found:
                _delete(maker, found[name])
    except CloudError as error:
        say(f"{error} What is left of {', '.join(ids)} is billed until the last private cluster is removed.")


def _delete(maker: ResourceMaker, resource: Resource) -> None:
    """Raises Blocked at the deadline."""
    deadline = maker.clock.now() + GONE_TIMEOUT_S
    waits = PollWaits()
    while True:
        try:
            return deletion.delete(maker.api, maker.clock, resource)
        except Blocked:
            if maker.clock.now() > deadline:
                raise
        maker.clock.sleep(waits.next())


def _create(maker: ResourceMaker, request: Request) -> str:
    made = maker.api.call("create_nat_gateway", again=True, settle=True, **request)["NatGateway"]
    if made["State"] not in USABLE:
        raise TokenSpent(
            f"The token of the NAT gateway {made['NatGatewayId']} is spent: that one is {made['State']}.",
            operation="CreateNatGateway",
        )
    return str(made["NatGatewayId"])


def _ensure_address(maker: ResourceMaker, cluster: CloudCluster, ensure: Ensure, read: Read) -> str:
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


def wait_available(maker: ResourceMaker, nat: str, vpc: str, *, read: Read, say: Say = quiet) -> str:
    """Wait until the NAT gateway works. Returns its id, or another's of ours that works where this one failed.

    Raises CloudError with AWS's reason where it failed, and at the deadline.
    """
    began = maker.clock.now()
    waits = PollWaits(share=CLOSE_SHARE)
    progress: Progress | None = None
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
                "run the command again, which continues with it, or `gpuctl down`, which removes it.",
                operation="CreateNatGateway",
                code="NotReady",
            )
        if progress is None:
            say(f"waiting for the NAT gateway {nat}, which takes AWS one to three minutes …")
            progress = Progress(maker.clock, say, every_s=TOLD_EVERY_S)
        progress.tell(f"waiting for the NAT gateway {nat} …")
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
    maker: ResourceMaker,
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
