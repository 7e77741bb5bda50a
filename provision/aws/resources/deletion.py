"""The deletion of our resources that are no instances."""

import contextlib
from typing import Any

from inventories.text import first_of
from provision.aws.api import Api, Item
from provision.aws.errors import translate
from provision.aws.requests import filters
from provision.aws.resources.resource_types import KINDS, Kind, attachments, listed
from provision.errors import Blocked, CloudError, Gone
from provision.records import Resource
from provision.rented import tags
from provision.waiting import Clock, poll

GONE_WITHIN_S = 15.0
MAX_NAMED = 5

_IN_USE = {
    "network-interface": ("InvalidParameterValue",),
    "volume": ("InvalidParameterValue",),
    "elastic-ip": ("AuthFailure", "OperationNotPermitted"),
}
"""EC2's codes for some kinds of resources in use."""


def delete(api: Api, clock: Clock, resource: Resource) -> None:
    """Remove a resource. Raises Blocked while it is in use, with the names of its users."""
    assert tags.is_ours(resource.tags), f"{resource.id} is not ours"
    kind = KINDS[resource.kind]
    try:
        if resource.kind == "internet-gateway":
            _detach(api, resource)
        if resource.kind == "route-table":
            _disassociate(api, resource)
        ids: dict[str, Any] = {kind.id: resource.id}
        if kind.deleted_by_name:
            ids = {kind.named or "": resource.name}
        elif kind.deleted_in_a_list:
            ids = {f"{kind.id}s": [resource.id]}
        answer = api.call(kind.delete, again=True, **ids)
        # The successful answer of a call that takes several ids has the error of each.
        for refused in answer.get("Unsuccessful") or []:
            operation = "".join(word.capitalize() for word in kind.delete.split("_"))
            raise translate(refused, service="ec2", operation=operation, region=api.region)
    except Gone:
        return
    except CloudError as error:
        if not isinstance(error, Blocked) and error.code not in _IN_USE.get(resource.kind, ()):
            raise
        # All of its users, ours or not.
        holders = [
            *_attached_to(api, kind, resource),
            *_interfaces(api, kind, resource),
            *_inside(api, resource),
        ]
        if not holders:
            raise
        raise Blocked(
            f"The {resource.kind} {resource.id} in {api.region} is used by {first_of(holders, MAX_NAMED)}.",
            operation=error.operation,
            code=error.code,
        ) from error
    if kind.slow:
        for _ in poll(clock, GONE_WITHIN_S):
            if resource.id not in {other.id for other in listed(api, kind)}:
                return
        minutes = f", which can take {kind.ends_within_s / 60:.0f} minutes" if kind.ends_within_s else ""
        raise Blocked(f"The {resource.kind} {resource.id} in {api.region} is being deleted{minutes}.")


def _disassociate(api: Api, resource: Resource) -> None:
    """Remove a route table's associations, also with deleted subnets, which a cloud may still list."""
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
    gateways = api.pages(
        "describe_internet_gateways", "InternetGateways", Filters=filters(internet_gateway_id=resource.id)
    )
    for attachment in [a for gateway in gateways for a in gateway.get("Attachments", [])]:
        try:
            api.call(
                "detach_internet_gateway",
                again=True,
                InternetGatewayId=resource.id,
                VpcId=attachment["VpcId"],
            )
        except Gone:
            continue  # detached since it was listed


def _attached_to(api: Api, kind: Kind, resource: Resource) -> list[str]:
    """Return all instances that a volume or a network interface is attached to."""
    if not kind.attachable:
        return []
    conditions = [{"Name": f"{kind.name}-id", "Values": [resource.id]}]
    items = api.pages(kind.list, kind.key, Filters=conditions)
    return [
        f"instance {a['InstanceId']}" if "InstanceId" in a else f"attachment {a.get('AttachmentId', '')}"
        for item in items
        for a in attachments(item)
    ]


def _interfaces(api: Api, kind: Kind, resource: Resource) -> list[str]:
    """Return all network interfaces that use a resource."""
    if kind.holds is None:
        return []
    interfaces = api.pages(
        "describe_network_interfaces",
        "NetworkInterfaces",
        Filters=[{"Name": kind.holds, "Values": [resource.id]}],
    )
    return [_interface_name(interface) for interface in interfaces]


def _interface_name(interface: Item) -> str:
    attachment = interface.get("Attachment", {})
    owner = attachment.get("InstanceId") or interface.get("Description") or interface.get("Status", "")
    return f"network interface {interface['NetworkInterfaceId']}" + (f" ({owner})" if owner else "")


def _inside(api: Api, resource: Resource) -> list[str]:
    """Return other makers' resources in our VPC, or that admit our group."""
    if resource.kind == "security-group":
        conditions = [{"Name": "ip-permission.group-id", "Values": [resource.id]}]
        groups = api.pages("describe_security_groups", "SecurityGroups", Filters=conditions)
        group_ids = [group["GroupId"] for group in groups if group["GroupId"] != resource.id]
        return [f"the rules of security group {other}" for other in group_ids]
    if resource.kind == "elastic-ip":
        addresses = api.pages("describe_addresses", "Addresses", Filters=filters(allocation_id=resource.id))
        holders = [
            f"network interface {a.get('NetworkInterfaceId', '')}" for a in addresses if "AssociationId" in a
        ]
        return holders or ["something that AWS does not name"]
    if resource.kind != "vpc":
        return []
    in_vpc = filters(vpc_id=resource.id)
    groups = api.pages("describe_security_groups", "SecurityGroups", Filters=in_vpc)
    subnets = api.pages("describe_subnets", "Subnets", Filters=in_vpc)
    tables = api.pages("describe_route_tables", "RouteTables", Filters=in_vpc)
    endpoints = api.pages("describe_vpc_endpoints", "VpcEndpoints", Filters=in_vpc)
    side_tables = [table for table in tables if not any(a.get("Main") for a in table.get("Associations", []))]
    return [
        # The name shows the maker, such as `GuardDutyManagedSecurityGroup-…`.
        *(
            f"security group {group['GroupId']} ({group['GroupName']})"
            for group in groups
            if group["GroupName"] != "default"
        ),
        *(f"subnet {subnet['SubnetId']}" for subnet in subnets),
        *(f"route table {table['RouteTableId']}" for table in side_tables),
        *(f"endpoint {endpoint['VpcEndpointId']}" for endpoint in endpoints),
    ]
