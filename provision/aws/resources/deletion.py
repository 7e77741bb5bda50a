"""What there is of ours besides instances, and how it is removed."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from provision.aws import instances
from provision.aws.api import Answer, Api
from provision.aws.errors import translate
from provision.aws.infrastructure.find_or_create import Item
from provision.aws.requests import filters, ours, tags_in
from provision.aws.resources.kinds import KINDS, Kind
from provision.clock import Clock
from provision.cloud import tags
from provision.cloud.records import Resource
from provision.errors import Blocked, CloudError, Gone
from provision.parallel import run_all, values
from provision.retry import PollWaits

GONE_WITHIN_S = 15.0
MOST_NAMED = 5

_GOING = frozenset({"deleting", "deleted", "failed", "rejected"})

_BY_NAME = {kind.name: kind for kind in KINDS}

_IN_USE = {
    "network-interface": ("InvalidParameterValue",),
    "volume": ("InvalidParameterValue",),
    "elastic-ip": ("AuthFailure", "OperationNotPermitted"),
}
"""What EC2 answers, of some kinds, where something uses them."""


def resources(api: Api) -> tuple[Resource, ...]:
    """Everything of ours in the region that is no instance and does not go with one."""
    reads: list[Callable[[], Sequence[Any]]] = [partial(_items, api, kind) for kind in KINDS]
    reads.append(partial(instances.listed, api, None))
    *found, machines = values(run_all(lambda read: read(), reads))
    lists = dict(zip((kind.name for kind in KINDS), found, strict=True))
    networks = _address_networks(lists["nat-gateway"])
    own = {(machine.id, machine.tags.get(tags.CLUSTER_ID)) for machine in machines}
    return tuple(
        _part(kind, item, networks)
        for kind in KINDS
        for item in lists[kind.name]
        if not (kind.attachable and _goes_with(item, own))
    )


def listed(api: Api, kind: Kind) -> list[Resource]:
    """Ours of one kind, also what goes with an instance."""
    return [_part(kind, item, {}) for item in _items(api, kind)]


def _items(api: Api, kind: Kind) -> list[Any]:
    which = [*ours(), *({"Name": name, "Values": list(v)} for name, v in (kind.which or {}).items())]
    return api.pages(kind.list, kind.key, Filters=which)


def _goes_with(item: Item, own: Collection[tuple[str, str | None]]) -> bool:
    """Whether it is attached, and to nothing but machines of its own cluster: `own`, by id and cluster."""
    cluster = tags_in(item).get(tags.CLUSTER_ID)
    attachments = _attachments(item)
    return bool(attachments) and all((a.get("InstanceId", ""), cluster) in own for a in attachments)


def _attachments(item: Item) -> list[Item]:
    """Of a volume, which may have several, or of a network interface."""
    if one := item.get("Attachment"):
        return [one]
    return list(item.get("Attachments", []))


def _address_networks(gateways: Sequence[Item]) -> dict[str, str]:
    """The VPC that an Elastic IP serves, by its id: that of its NAT gateway, as it has none of its own."""
    return {
        address["AllocationId"]: gateway["VpcId"]
        for gateway in gateways
        for address in gateway.get("NatGatewayAddresses", [])
        if "AllocationId" in address
    }


def _part(kind: Kind, item: Item, networks: Mapping[str, str]) -> Resource:
    of = tags_in(item)
    name = str(item.get(kind.named, "")) if kind.named else of.get("Name", "")
    part_id = str(item.get(kind.id) or name)
    return Resource(
        kind=kind.name,
        id=part_id,
        name=name,
        tags=of,
        stage=kind.stage,
        ends_within_s=kind.ends_within_s,
        network=networks.get(part_id) or item.get("VpcId") or _attached_vpc(item),
        going=str(item.get("State", "")).lower() in _GOING,
    )


def _attached_vpc(item: Item) -> str | None:
    """The VPC of an internet gateway."""
    return next((str(one["VpcId"]) for one in item.get("Attachments", []) if "VpcId" in one), None)


def delete(api: Api, clock: Clock, resource: Resource) -> None:
    """Remove a part. Raises Blocked while something uses it, with the names of what does."""
    assert tags.is_ours(resource.tags), f"{resource.id} is not ours"
    kind = _BY_NAME[resource.kind]
    try:
        if resource.kind == "internet-gateway":
            _detach(api, resource)
        if resource.kind == "route-table":
            _disassociate(api, resource)
        _refuse_unsuccessful(api, kind, api.call(kind.delete, again=True, **_whom(kind, resource)))
    except Gone:
        return
    except CloudError as error:
        if not isinstance(error, Blocked) and error.code not in _IN_USE.get(resource.kind, ()):
            raise
        holders = [
            *_attached_to(api, kind, resource),
            *_interfaces(api, kind, resource),
            *_inside(api, resource),
        ]
        if not holders:
            raise
        more = f" and {len(holders) - MOST_NAMED} more" if len(holders) > MOST_NAMED else ""
        raise Blocked(
            f"The {resource.kind} {resource.id} in {api.region} is used by {', '.join(holders[:MOST_NAMED])}{more}.",
            operation=error.operation,
            code=error.code,
        ) from error
    if kind.slow:
        _await_gone(api, clock, kind, resource)


def _whom(kind: Kind, resource: Resource) -> dict[str, Any]:
    if kind.deleted_by_name:
        return {kind.named or "": resource.name}
    return {f"{kind.id}s": [resource.id]} if kind.deleted_in_a_list else {kind.id: resource.id}


def _refuse_unsuccessful(api: Api, kind: Kind, answer: Answer) -> None:
    """Raise what a call that takes several ids says of one, in an answer that is none of an error."""
    for refused in answer.get("Unsuccessful") or []:
        operation = "".join(word.capitalize() for word in kind.delete.split("_"))
        raise translate(refused, service="ec2", operation=operation, region=api.region)


def _disassociate(api: Api, resource: Resource) -> None:
    """Free a route table of subnets: of those that are gone, too, where a cloud keeps their association."""
    for table in api.pages(
        "describe_route_tables", "RouteTables", Filters=filters(route_table_id=resource.id)
    ):
        for association in table.get("Associations", []):
            if not association.get("Main"):
                with contextlib.suppress(Gone):
                    api.call(
                        "disassociate_route_table",
                        again=True,
                        AssociationId=association["RouteTableAssociationId"],
                    )


def _detach(api: Api, resource: Resource) -> None:
    found = api.pages(
        "describe_internet_gateways", "InternetGateways", Filters=filters(internet_gateway_id=resource.id)
    )
    for attachment in [a for gateway in found for a in gateway.get("Attachments", [])]:
        try:
            api.call(
                "detach_internet_gateway",
                again=True,
                InternetGatewayId=resource.id,
                VpcId=attachment["VpcId"],
            )
        except Gone:
            continue  # detached since it was listed


def _await_gone(api: Api, clock: Clock, kind: Kind, resource: Resource) -> None:
    deadline = clock.now() + GONE_WITHIN_S
    waits = PollWaits()
    while resource.id in {other.id for other in listed(api, kind)}:
        if clock.now() > deadline:
            minutes = f", which can take {kind.ends_within_s / 60:.0f} minutes" if kind.ends_within_s else ""
            raise Blocked(f"The {resource.kind} {resource.id} in {api.region} is being deleted{minutes}.")
        clock.sleep(waits.next())


def _attached_to(api: Api, kind: Kind, resource: Resource) -> list[str]:
    """The instances that a volume or a network interface is attached to, whosever they are."""
    if not kind.attachable:
        return []
    which = [{"Name": f"{kind.name}-id", "Values": [resource.id]}]
    found = api.pages(kind.list, kind.key, Filters=which)
    return [
        f"instance {a['InstanceId']}" if "InstanceId" in a else f"attachment {a.get('AttachmentId', '')}"
        for item in found
        for a in _attachments(item)
    ]


def _associated_with(api: Api, resource: Resource) -> list[str]:
    """The network interface that has an Elastic IP; just after a NAT gateway's end, none is shown any more."""
    found = api.pages("describe_addresses", "Addresses", Filters=filters(allocation_id=resource.id))
    holders = [f"network interface {a.get('NetworkInterfaceId', '')}" for a in found if "AssociationId" in a]
    return holders or ["something that AWS does not name"]


def _interfaces(api: Api, kind: Kind, resource: Resource) -> list[str]:
    """The network interfaces that use a part, whosever they are."""
    if kind.holds is None:
        return []
    found = api.pages(
        "describe_network_interfaces",
        "NetworkInterfaces",
        Filters=[{"Name": kind.holds, "Values": [resource.id]}],
    )
    return [_interface_name(interface) for interface in found]


def _interface_name(interface: Item) -> str:
    attachment = interface.get("Attachment", {})
    owner = attachment.get("InstanceId") or interface.get("Description") or interface.get("Status", "")
    return f"network interface {interface['NetworkInterfaceId']}" + (f" ({owner})" if owner else "")


def _inside(api: Api, resource: Resource) -> list[str]:
    """What somebody else has put into our VPC, or lets our group in."""
    if resource.kind == "security-group":
        which = [{"Name": "ip-permission.group-id", "Values": [resource.id]}]
        found = api.pages("describe_security_groups", "SecurityGroups", Filters=which)
        others = [group["GroupId"] for group in found if group["GroupId"] != resource.id]
        return [f"the rules of security group {other}" for other in others]
    if resource.kind == "elastic-ip":
        return _associated_with(api, resource)
    if resource.kind != "vpc":
        return []
    here = filters(vpc_id=resource.id)
    groups = api.pages("describe_security_groups", "SecurityGroups", Filters=here)
    subnets = api.pages("describe_subnets", "Subnets", Filters=here)
    tables = api.pages("describe_route_tables", "RouteTables", Filters=here)
    endpoints = api.pages("describe_vpc_endpoints", "VpcEndpoints", Filters=here)
    own = [table for table in tables if not any(a.get("Main") for a in table.get("Associations", []))]
    return [
        *(f"security group {group['GroupId']}" for group in groups if group["GroupName"] != "default"),
        *(f"subnet {subnet['SubnetId']}" for subnet in subnets),
        *(f"route table {table['RouteTableId']}" for table in own),
        *(f"endpoint {endpoint['VpcEndpointId']}" for endpoint in endpoints),
    ]
