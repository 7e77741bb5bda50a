"""Network interfaces: their addresses, their instances, and their end, which comes late."""

from dataclasses import dataclass, field
from typing import Any

from tests.fakes.aws_proxy import lookup, shapes
from tests.fakes.aws_proxy.errors import ApiError, dry_run
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.interface_plan import InterfacePlan, plan_one
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.world import Tags, Thing, World, new_id, tag_list, tags_for, utc_now

Params = dict[str, Any]


@dataclass(kw_only=True, eq=False)
class Interface(Thing):
    """`body` has neither its attachment nor its public address."""

    instance_id: str | None = None
    attachment: dict[str, Any] | None = None
    wants_public: bool = False
    public_ip: str | None = None
    allocation_id: str | None = None
    """Id of an Elastic IP. `None`: the address is Amazon's, and is released when the instance stops."""
    addresses: list[str] = field(default_factory=list)

    @property
    def association(self) -> dict[str, Any] | None:
        """Return the public address, as boto3 shows it."""
        if self.public_ip is None:
            return None
        owner = ACCOUNT if self.allocation_id else "amazon"
        name = f"ec2-{self.public_ip.replace('.', '-')}.compute-1.amazonaws.com"
        return {"IpOwnerId": owner, "PublicDnsName": name, "PublicIp": self.public_ip}

    def shown(self) -> dict[str, Any]:
        """Return the view of DescribeNetworkInterfaces, which names the tags differently."""
        owner = ACCOUNT if self.instance_id else "amazon-aws"
        attachment = self.attachment and self.attachment | {
            "InstanceId": self.instance_id,
            "InstanceOwnerId": owner,
        }
        association = self.association
        if association and self.allocation_id:
            association["AllocationId"] = self.allocation_id
        return self.body | {
            "Association": association,
            "Attachment": attachment,
            "Status": "in-use" if attachment else "available",
            "TagSet": tag_list(self.tags),
            "PrivateIpAddresses": [
                entry | ({"Association": association} if entry["Primary"] and association else {})
                for entry in self.body["PrivateIpAddresses"]
            ],
        }


def make(
    world: World, region: str, planned: InterfacePlan, tags: Tags, *, address: str | None, text: str = ""
) -> Interface:
    """Create a detached interface. `address`: an address of its own; else one of the subnet's."""
    if planned.type == "efa-only":
        local = []
    elif address:
        local = [address]
    else:
        local = [_take_address(world, region, planned)]
    subnet = lookup.subnet(world, region, planned.subnet_id)
    zone = str(subnet.availability_zone)
    groups = [
        {"GroupId": name, "GroupName": lookup.group(world, region, name).name} for name in planned.group_ids
    ]
    interface = Interface(
        kind="network-interface",
        id=new_id("eni"),
        region=region,
        tags=dict(tags),
        wants_public=planned.public,
        addresses=local,
        body={
            "AvailabilityZone": zone,
            "AvailabilityZoneId": shapes.zones(region).get(zone),
            "Description": text,
            "Groups": groups,
            "InterfaceType": planned.type,
            "Ipv6Addresses": [],
            "MacAddress": "0a:" + ":".join(new_id("")[-10:][index : index + 2] for index in range(0, 10, 2)),
            "OwnerId": ACCOUNT,
            "PrivateDnsName": _dns_name(local[0]) if local else None,
            "PrivateIpAddress": local[0] if local else None,
            "PrivateIpAddresses": [
                {"Primary": index == 0, "PrivateIpAddress": result, "PrivateDnsName": _dns_name(result)}
                for index, result in enumerate(local)
            ],
            "RequesterManaged": False,
            "SourceDestCheck": True,
            "SubnetId": planned.subnet_id,
            "VpcId": planned.vpc_id,
        },
    )
    interface.body["NetworkInterfaceId"] = interface.id
    world.add(interface)
    _tell_moto(world, interface)
    return interface


def _remove(world: World, interface: Thing) -> None:
    del world.things[interface.id]
    _tell_moto(world, interface)


def _tell_moto(world: World, interface: Thing) -> None:
    """Let DescribeSubnets show how many addresses are free."""
    name = interface.body["SubnetId"]
    if subnet := lookup.find_subnet(world, interface.region, name):
        result = world.of("network-interface", interface.region)
        values = sum(len(entry.addresses) for entry in result if entry.body["SubnetId"] == name)
        subnet._available_ip_addresses = subnet.cidr.num_addresses - 5 - values


def _take_address(world: World, region: str, planned: InterfacePlan) -> str:
    free = lookup.free_addresses(world, region, planned.subnet_id)
    if planned.address is not None:
        if planned.address not in free:
            raise ApiError("InvalidIPAddress.InUse", f"Address {planned.address} is in use.")
        return planned.address
    first = next(free, None)
    if first is None:
        raise no_addresses(planned.subnet_id)
    return first


def no_addresses(subnet_id: str) -> ApiError:
    """Return the error for a full subnet."""
    return ApiError(
        "InsufficientFreeAddressesInSubnet",
        f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of "
        "instances.",
    )


def _dns_name(address: str) -> str:
    return f"ip-{address.replace('.', '-')}.ec2.internal"


def attach(interface: Interface, instance_id: str, planned: InterfacePlan) -> None:
    """Attach an interface to the instance that it was made for."""
    interface.instance_id = instance_id
    interface.attachment = {
        "AttachmentId": new_id("eni-attach"),
        "AttachTime": utc_now(),
        "DeleteOnTermination": planned.dies_with_instance,
        "DeviceIndex": planned.device,
        "NetworkCardIndex": planned.card,
        "Status": "attached",
    }


def attach_to_service(interface: Interface) -> None:
    """Create an interface of a service, which only the service can remove."""
    interface.body |= {"RequesterManaged": True, "SourceDestCheck": False}
    interface.attachment = {
        "AttachmentId": new_id("ela-attach"),
        "DeleteOnTermination": False,
        "DeviceIndex": 1,
        "Status": "attached",
    }


def drop(world: World, name: str | None) -> None:
    """Remove an interface on behalf of its service."""
    interface = world.things.get(name or "")
    if isinstance(interface, Interface):
        _remove(world, interface)


def instance_gone(world: World, instance_id: str) -> None:
    """Delete an ended instance's interfaces, or detach them."""
    for interface in [thing for thing in world.things.values() if isinstance(thing, Interface)]:
        if interface.instance_id != instance_id or interface.attachment is None:
            continue
        if interface.attachment["DeleteOnTermination"]:
            _remove(world, interface)
        else:
            interface.instance_id = interface.attachment = None


def create(world: World, region: str, params: Params) -> dict[str, Any]:
    """CreateNetworkInterface."""
    subnet = lookup.subnet(world, region, params["SubnetId"])
    entry = {
        "DeviceIndex": 0,
        "SubnetId": subnet.id,
        "Groups": params.get("Groups"),
        "InterfaceType": params.get("InterfaceType", "interface"),
        "AssociatePublicIpAddress": False,
        "PrivateIpAddress": params.get("PrivateIpAddress"),
    }
    planned = plan_one(world, region, entry, subnet, single=True)
    if params.get("DryRun"):
        raise dry_run()
    tags = tags_for(params, "network-interface")
    made = make(world, region, planned, tags, address=None, text=params.get("Description", ""))
    return {"NetworkInterface": made.shown()}


def delete(world: World, region: str, params: Params) -> dict[str, Any]:
    """DeleteNetworkInterface."""
    interface = world.get("network-interface", region, params["NetworkInterfaceId"])
    if params.get("DryRun"):
        raise dry_run()
    if interface.attachment:
        raise ApiError("InvalidParameterValue", f"Network interface '{interface.id}' is currently in use.")
    _remove(world, interface)
    return {}


FILTERS = {
    "addresses.private-ip-address": "PrivateIpAddresses.PrivateIpAddress",
    "association.allocation-id": "Association.AllocationId",
    "association.ip-owner-id": "Association.IpOwnerId",
    "association.public-ip": "Association.PublicIp",
    "attachment.attachment-id": "Attachment.AttachmentId",
    "attachment.device-index": "Attachment.DeviceIndex",
    "attachment.instance-id": "Attachment.InstanceId",
    "attachment.status": "Attachment.Status",
    "availability-zone": "AvailabilityZone",
    "description": "Description",
    "group-id": "Groups.GroupId",
    "group-name": "Groups.GroupName",
    "interface-type": "InterfaceType",
    "mac-address": "MacAddress",
    "network-interface-id": "NetworkInterfaceId",
    "owner-id": "OwnerId",
    "private-ip-address": "PrivateIpAddress",
    "status": "Status",
    "subnet-id": "SubnetId",
    "vpc-id": "VpcId",
}


def describe(world: World, region: str, params: Params) -> dict[str, Any]:
    """DescribeNetworkInterfaces."""
    ids, kind = params.get("NetworkInterfaceIds", []), "network-interface"
    chosen = [world.get(kind, region, name) for name in ids] if ids else world.of(kind, region)
    shown = [result.shown() for result in chosen if ids or world.visible(result)]
    for entry in shown:
        entry["Tags"] = entry["TagSet"]
    items, token = page(
        matching(shown, params.get("Filters", []), FILTERS), params, ids="NetworkInterfaceIds"
    )
    for entry in items:
        del entry["Tags"]
    return {"NetworkInterfaces": items, "NextToken": token}
