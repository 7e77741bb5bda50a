"""The routes of private subnets: one NAT gateway a VPC with its Elastic IP, and a gateway endpoint for S3.

Both kinds of gateway have a token in their create call. A NAT gateway costs money from its creation to its end, so
all zones share one, which is removed with the last private cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from provision.aws import requests
from provision.aws.api import Item
from provision.aws.infrastructure.find_or_create import Listing, ResourceMaker, lowest, named
from provision.aws.infrastructure.subnets import leads_to
from provision.aws.requests import tagged
from provision.aws.resources import deletion, resource_types
from provision.errors import Blocked, CloudError, Exists, TokenSpent
from provision.rented import tags
from provision.waiting import CLOSE_SHARE, Progress, poll, retry_while

READY_TIMEOUT_S = 600.0
"""AWS takes one to three minutes."""
GONE_TIMEOUT_S = 600.0
PROGRESS_S = 30.0
USABLE = ("pending", "available")
ADDRESS_TAKEN = "Resource.AlreadyAssociated"
"""The code of a gateway that failed because another gateway has its address."""


def ensure_nat(
    maker: ResourceMaker, vpc: str, nats: Listing, public_subnets: Mapping[str, Callable[[], str]]
) -> tuple[str, bool]:
    """Find or create the VPC's NAT gateway, which may be pending then. Returns its id, and whether it is new.

    `public_subnets`: functions that make the subnet of a new gateway, by their zones in the order of the tries. An
    existing gateway needs neither a subnet nor an address.
    """
    made: set[str] = set()

    def create(token: str) -> str:
        addresses = maker.listing("describe_addresses", "Addresses", tagged(tags.CLUSTER, tags.NETWORK))
        addresses.read()
        address = maker.ensure(
            "elastic-ip",
            addresses,
            pick=lambda items: lowest([i for i in items if "AssociationId" not in i], "AllocationId"),
            field="AllocationId",
            create=lambda _: maker.create(
                "allocate_address", requests.elastic_ip(maker.cluster), None, "AllocationId"
            ),
            shared=True,
        )
        refused: CloudError | None = None
        for zone, public_subnet in public_subnets.items():
            if refused is not None:
                maker.say(f"AWS makes no NAT gateway there now: trying {zone} …")
            # A token stands for one request.
            request = requests.nat_gateway(maker.cluster, public_subnet(), address, f"{token}-{zone}")
            try:
                nat = maker.api.call("create_nat_gateway", again=True, settle=True, **request)["NatGateway"]
                if nat["State"] not in USABLE:
                    raise TokenSpent(
                        f"The token of the NAT gateway {nat['NatGatewayId']} is spent: that one is {nat['State']}.",
                        operation="CreateNatGateway",
                    )
                gateway = str(nat["NatGatewayId"])
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
        nats,
        pick=partial(_usable, vpc=vpc),
        field="NatGatewayId",
        create=create,
        shared=True,
    )
    return nat, nat in made


def usable(items: Sequence[Item], vpc: str) -> list[str]:
    """Return the ids of the VPC's gateways that work, or will, the lowest first."""
    return sorted(str(i["NatGatewayId"]) for i in items if i["VpcId"] == vpc and i["State"] in USABLE)


def _usable(items: Sequence[Item], vpc: str) -> Item | None:
    return named(items, "NatGatewayId", next(iter(usable(items, vpc)), ""))


def agree(maker: ResourceMaker, nat: str, vpc: str, table: Item | None, nats: Listing, *, made: bool) -> str:
    """Return the working NAT gateway that all commands choose after a race.

    The route table's gateway wins, as machines use it, else the lowest id. `made`: `nat` is this command's own; if
    another one wins, `nat` is removed with its address.
    """
    items = nats.read()
    ids = usable(items, vpc)
    used = [name for name in ids if table is not None and leads_to(table, {name})]
    chosen = next(iter(used or ids), nat)
    if chosen == nat:
        return nat
    chosen = wait_available(maker, chosen, vpc, nats)
    if made and chosen != nat:
        _remove(maker, nat, named(items, "NatGatewayId", nat))
    return chosen


def _remove(maker: ResourceMaker, nat: str, item: Item | None) -> None:
    """Remove an unused gateway and its address. A failure is said, and does not stop the command."""
    maker.say(f"another NAT gateway was made at the same time, and serves all: removing {nat} …")
    ids = [nat, *(str(a["AllocationId"]) for a in (item or {}).get("NatGatewayAddresses", []))]
    try:
        resources = {resource.id: resource for resource in resource_types.resources(maker.api)}
        for name in ids:
            if name in resources:
                delete = partial(deletion.delete, maker.api, maker.clock, resources[name])
                retry_while(maker.clock, delete, lambda error: isinstance(error, Blocked), GONE_TIMEOUT_S)
    except CloudError as error:
        maker.say(
            f"{error} What is left of {', '.join(ids)} is billed until the last private cluster is removed."
        )


def wait_available(maker: ResourceMaker, nat: str, vpc: str, nats: Listing) -> str:
    """Wait until the NAT gateway works. Returns its id, or that of another of ours if this one failed.

    Raises CloudError with AWS's reason for a failed gateway, and at the deadline.
    """
    progress: Progress | None = None
    for passed_s in poll(maker.clock, READY_TIMEOUT_S, share=CLOSE_SHARE):
        items = nats.read()
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
                reason = str(item.get("FailureMessage") or f"it is {item['State']}").rstrip(".")
                raise CloudError(
                    f"The NAT gateway {item['NatGatewayId']} did not come up: {reason}. Run the command again, "
                    "which makes another one; `gpuctl down` removes what is left.",
                    operation="CreateNatGateway",
                    code=str(item.get("FailureCode") or item["State"]),
                )
            nat = str(other["NatGatewayId"])
        if progress is None:
            maker.say(f"waiting for the NAT gateway {nat}, which takes AWS one to three minutes …")
            progress = Progress(maker.clock, maker.say, every_s=PROGRESS_S)
        progress.tell(f"waiting for the NAT gateway {nat} …")
    raise CloudError(
        f"The NAT gateway {nat} was still pending after {READY_TIMEOUT_S / 60:.0f} minutes. It costs money: "
        "run the command again, which continues with it, or `gpuctl down`, which removes it.",
        operation="CreateNatGateway",
        code="NotReady",
    )


def ensure_endpoint(maker: ResourceMaker, vpc: str, table: str, endpoints: Listing) -> None:
    """Give the table a route to S3 without the NAT gateway."""

    def pick(items: Sequence[Item]) -> Item | None:
        service = requests.s3_service(maker.cluster)
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
        endpoints,
        pick=pick,
        field="VpcEndpointId",
        create=lambda token: maker.create(
            "create_vpc_endpoint",
            requests.s3_endpoint(maker.cluster, vpc, table, token),
            "VpcEndpoint",
            "VpcEndpointId",
            again=True,
        ),
        shared=True,
    )
    item = named(endpoints.known, "VpcEndpointId", endpoint)
    # An endpoint that no list had is new, and made for this table.
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
