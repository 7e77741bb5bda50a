"""The names of the users that keep a resource from being deleted."""

from provision.aws.api import Api, Item
from provision.aws.requests import filters
from provision.aws.resources.listing import attachments
from provision.aws.resources.resource_types import Kind
from provision.records import Resource


def blockers(api: Api, kind: Kind, resource: Resource) -> list[str]:
    """Return the names of all users of a resource, ours or not."""
    return [
        *_attached_to(api, kind, resource),
        *_interfaces(api, kind, resource),
        *_inside(api, resource),
    ]


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


def _associated_with(api: Api, resource: Resource) -> list[str]:
    """Return the network interface of an Elastic IP; just after a NAT gateway's end, AWS does not show it."""
    addresses = api.pages("describe_addresses", "Addresses", Filters=filters(allocation_id=resource.id))
    holders = [
        f"network interface {a.get('NetworkInterfaceId', '')}" for a in addresses if "AssociationId" in a
    ]
    return holders or ["something that AWS does not name"]


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


def _group_name(group: Item) -> str:
    """Return the id and the name, which shows the maker, such as `GuardDutyManagedSecurityGroup-…`."""
    return f"security group {group['GroupId']} ({group['GroupName']})"


def _inside(api: Api, resource: Resource) -> list[str]:
    """Return other makers' resources in our VPC, or that admit our group."""
    if resource.kind == "security-group":
        conditions = [{"Name": "ip-permission.group-id", "Values": [resource.id]}]
        groups = api.pages("describe_security_groups", "SecurityGroups", Filters=conditions)
        group_ids = [group["GroupId"] for group in groups if group["GroupId"] != resource.id]
        return [f"the rules of security group {other}" for other in group_ids]
    if resource.kind == "elastic-ip":
        return _associated_with(api, resource)
    if resource.kind != "vpc":
        return []
    in_vpc = filters(vpc_id=resource.id)
    groups = api.pages("describe_security_groups", "SecurityGroups", Filters=in_vpc)
    subnets = api.pages("describe_subnets", "Subnets", Filters=in_vpc)
    tables = api.pages("describe_route_tables", "RouteTables", Filters=in_vpc)
    endpoints = api.pages("describe_vpc_endpoints", "VpcEndpoints", Filters=in_vpc)
    side_tables = [table for table in tables if not any(a.get("Main") for a in table.get("Associations", []))]
    return [
        *(_group_name(group) for group in groups if group["GroupName"] != "default"),
        *(f"subnet {subnet['SubnetId']}" for subnet in subnets),
        *(f"route table {table['RouteTableId']}" for table in side_tables),
        *(f"endpoint {endpoint['VpcEndpointId']}" for endpoint in endpoints),
    ]
