"""What stands in the way of deleting a resource, by name."""

from provision.aws.api import Api, Item
from provision.aws.requests import filters
from provision.aws.resources.listing import attachments
from provision.aws.resources.resource_types import Kind
from provision.records import Resource


def blockers(api: Api, kind: Kind, resource: Resource) -> list[str]:
    """What uses it, ours or not."""
    return [
        *_attached_to(api, kind, resource),
        *_interfaces(api, kind, resource),
        *_inside(api, resource),
    ]


def _attached_to(api: Api, kind: Kind, resource: Resource) -> list[str]:
    """The instances that a volume or a network interface is attached to, whosever they are."""
    if not kind.attachable:
        return []
    which = [{"Name": f"{kind.name}-id", "Values": [resource.id]}]
    found = api.pages(kind.list, kind.key, Filters=which)
    return [
        f"instance {a['InstanceId']}" if "InstanceId" in a else f"attachment {a.get('AttachmentId', '')}"
        for item in found
        for a in attachments(item)
    ]


def _associated_with(api: Api, resource: Resource) -> list[str]:
    """The network interface that has an Elastic IP; just after a NAT gateway's end, none is shown any more."""
    found = api.pages("describe_addresses", "Addresses", Filters=filters(allocation_id=resource.id))
    holders = [f"network interface {a.get('NetworkInterfaceId', '')}" for a in found if "AssociationId" in a]
    return holders or ["something that AWS does not name"]


def _interfaces(api: Api, kind: Kind, resource: Resource) -> list[str]:
    """The network interfaces that use a resource, whosever they are."""
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


def _group_name(group: Item) -> str:
    """Return the id and the name, which shows the maker, such as `GuardDutyManagedSecurityGroup-…`."""
    return f"security group {group['GroupId']} ({group['GroupName']})"


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
        *(_group_name(group) for group in groups if group["GroupName"] != "default"),
        *(f"subnet {subnet['SubnetId']}" for subnet in subnets),
        *(f"route table {table['RouteTableId']}" for table in own),
        *(f"endpoint {endpoint['VpcEndpointId']}" for endpoint in endpoints),
    ]
