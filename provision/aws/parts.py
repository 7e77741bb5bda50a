"""What there is of ours besides instances, and how it is removed."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision import tags
from provision.aws.api import Api
from provision.aws.requests import filters, ours, tags_in
from provision.clock import Clock
from provision.cloud import Part
from provision.errors import Blocked, Gone
from provision.parallel import run_all, values
from provision.retry import PollWaits

GONE_WITHIN_S = 15.0
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of part: how it is listed and deleted."""

    name: str
    stage: int
    list: str
    key: str
    id: str
    delete: str
    named: str | None = None
    """The field of its name, where that is no tag."""
    deleted_by_name: bool = False
    which: Mapping[str, tuple[str, ...]] | None = None
    """Further filters: what belongs to an instance goes with it, and is none of our parts."""
    slow: bool = False
    """It is still there for a while after AWS has said that it deletes it."""
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
        which={"state": ("open",)},
    ),
    Kind(
        name="network-interface",
        stage=0,
        list="describe_network_interfaces",
        key="NetworkInterfaces",
        id="NetworkInterfaceId",
        delete="delete_network_interface",
        which={"status": ("available",)},
    ),
    Kind(
        name="volume",
        stage=0,
        list="describe_volumes",
        key="Volumes",
        id="VolumeId",
        delete="delete_volume",
        which={"status": ("creating", "available", "error")},
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
        name="subnet",
        stage=2,
        list="describe_subnets",
        key="Subnets",
        id="SubnetId",
        delete="delete_subnet",
        holds="subnet-id",
    ),
    Kind(
        name="route-table",
        stage=3,
        list="describe_route_tables",
        key="RouteTables",
        id="RouteTableId",
        delete="delete_route_table",
    ),
    Kind(
        name="internet-gateway",
        stage=3,
        list="describe_internet_gateways",
        key="InternetGateways",
        id="InternetGatewayId",
        delete="delete_internet_gateway",
    ),
    Kind(
        name="vpc",
        stage=4,
        list="describe_vpcs",
        key="Vpcs",
        id="VpcId",
        delete="delete_vpc",
        holds="vpc-id",
    ),
)
"""In the order in which they can be deleted."""

_BY_NAME = {kind.name: kind for kind in KINDS}


def parts(api: Api) -> tuple[Part, ...]:
    """Everything of ours in the region that is no instance and does not go with one."""
    found = values(run_all(lambda kind: listed(api, kind), KINDS))
    return tuple(part for of_kind in found for part in of_kind)


def listed(api: Api, kind: Kind) -> list[Part]:
    """Ours of one kind."""
    which = [*ours(), *({"Name": name, "Values": list(v)} for name, v in (kind.which or {}).items())]
    return [_part(kind, item) for item in api.pages(kind.list, kind.key, Filters=which)]


def _part(kind: Kind, item: Mapping[str, Any]) -> Part:
    of = tags_in(item)
    name = str(item.get(kind.named, "")) if kind.named else of.get("Name", "")
    return Part(kind=kind.name, id=str(item.get(kind.id) or name), name=name, tags=of, stage=kind.stage)


def delete(api: Api, clock: Clock, part: Part) -> None:
    """Remove a part. Raises Blocked while something uses it, with the names of what does."""
    assert tags.is_ours(part.tags), f"{part.id} is not ours"
    kind = _BY_NAME[part.kind]
    try:
        if part.kind == "internet-gateway":
            _detach(api, part)
        if part.kind == "route-table":
            _disassociate(api, part)
        api.call(kind.delete, again=True, **_whom(kind, part))
    except Gone:
        return
    except Blocked as error:
        holders = [*_interfaces(api, kind, part), *_inside(api, part)]
        if not holders:
            raise
        more = f" and {len(holders) - MOST_NAMED} more" if len(holders) > MOST_NAMED else ""
        raise Blocked(
            f"The {part.kind} {part.id} in {api.region} is used by {', '.join(holders[:MOST_NAMED])}{more}.",
            operation=error.operation,
            code=error.code,
        ) from error
    if kind.slow:
        _await_gone(api, clock, kind, part)


def _whom(kind: Kind, part: Part) -> dict[str, Any]:
    if kind.deleted_by_name:
        return {kind.named or "": part.name}
    if part.kind == "spot-request":
        return {"SpotInstanceRequestIds": [part.id]}
    return {kind.id: part.id}


def _disassociate(api: Api, part: Part) -> None:
    """Free a route table of subnets: of those that are gone, too, where a cloud keeps their association."""
    for table in api.pages("describe_route_tables", "RouteTables", Filters=filters(route_table_id=part.id)):
        for association in table.get("Associations", []):
            if not association.get("Main"):
                with contextlib.suppress(Gone):
                    api.call(
                        "disassociate_route_table",
                        again=True,
                        AssociationId=association["RouteTableAssociationId"],
                    )


def _detach(api: Api, part: Part) -> None:
    found = api.pages(
        "describe_internet_gateways", "InternetGateways", Filters=filters(internet_gateway_id=part.id)
    )
    for attachment in [a for gateway in found for a in gateway.get("Attachments", [])]:
        try:
            api.call(
                "detach_internet_gateway", again=True, InternetGatewayId=part.id, VpcId=attachment["VpcId"]
            )
        except Gone:
            continue  # detached since it was listed


def _await_gone(api: Api, clock: Clock, kind: Kind, part: Part) -> None:
    deadline = clock.now() + GONE_WITHIN_S
    waits = PollWaits()
    while part.id in {other.id for other in listed(api, kind)}:
        if clock.now() > deadline:
            raise Blocked(f"The {part.kind} {part.id} in {api.region} is still there, though AWS deletes it.")
        clock.sleep(waits.next())


def _interfaces(api: Api, kind: Kind, part: Part) -> list[str]:
    """The network interfaces that use a part, whosever they are."""
    if kind.holds is None:
        return []
    found = api.pages(
        "describe_network_interfaces",
        "NetworkInterfaces",
        Filters=[{"Name": kind.holds, "Values": [part.id]}],
    )
    return [_interface_name(interface) for interface in found]


def _interface_name(interface: Mapping[str, Any]) -> str:
    attachment = interface.get("Attachment", {})
    owner = attachment.get("InstanceId") or interface.get("Description") or interface.get("Status", "")
    return f"network interface {interface['NetworkInterfaceId']}" + (f" ({owner})" if owner else "")


def _inside(api: Api, part: Part) -> list[str]:
    """What somebody else has put into our VPC, or lets our group in."""
    if part.kind == "security-group":
        which = [{"Name": "ip-permission.group-id", "Values": [part.id]}]
        found = api.pages("describe_security_groups", "SecurityGroups", Filters=which)
        others = [group["GroupId"] for group in found if group["GroupId"] != part.id]
        return [f"the rules of security group {other}" for other in others]
    if part.kind != "vpc":
        return []
    here = filters(vpc_id=part.id)
    groups = api.pages("describe_security_groups", "SecurityGroups", Filters=here)
    subnets = api.pages("describe_subnets", "Subnets", Filters=here)
    tables = api.pages("describe_route_tables", "RouteTables", Filters=here)
    own = [table for table in tables if not any(a.get("Main") for a in table.get("Associations", []))]
    return [
        *(f"security group {group['GroupId']}" for group in groups if group["GroupName"] != "default"),
        *(f"subnet {subnet['SubnetId']}" for subnet in subnets),
        *(f"route table {table['RouteTableId']}" for table in own),
    ]
