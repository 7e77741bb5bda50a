"""Our resources that are no instances, by tag."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from inventories.threads import run_all, together, values
from provision.aws import instances
from provision.aws.api import Api, Item
from provision.aws.requests import ours, tags_in
from provision.aws.resources.resource_types import KINDS, Kind
from provision.records import Resource
from provision.rented import tags

_DELETED = frozenset({"deleting", "deleted", "failed", "rejected"})


def resources(api: Api) -> tuple[Resource, ...]:
    """Return our resources in the region, without instances and resources that end with one."""
    listed_kinds, machines = together(
        lambda: values(run_all(partial(_items, api), KINDS)), partial(instances.listed, api, None)
    )
    lists = dict(zip((kind.name for kind in KINDS), listed_kinds, strict=True))
    networks = _address_networks(lists["nat-gateway"])
    own_machines = {(machine.id, machine.tags.get(tags.CLUSTER_ID)) for machine in machines}
    return tuple(
        _resource(kind, item, networks)
        for kind in KINDS
        for item in lists[kind.name]
        if not (kind.attachable and _goes_with(item, own_machines))
    )


def listed(api: Api, kind: Kind) -> list[Resource]:
    """Return our resources of a kind, also those that end with an instance."""
    return [_resource(kind, item, {}) for item in _items(api, kind)]


def _items(api: Api, kind: Kind) -> list[Any]:
    conditions = [*ours(), *({"Name": name, "Values": list(v)} for name, v in (kind.filters or {}).items())]
    return api.pages(kind.list, kind.key, Filters=conditions)


def _goes_with(item: Item, own_machines: Collection[tuple[str, str | None]]) -> bool:
    """Return whether it is attached to machines of its own cluster alone. `own_machines`: by id and cluster."""
    cluster = tags_in(item).get(tags.CLUSTER_ID)
    attached = attachments(item)
    return bool(attached) and all((a.get("InstanceId", ""), cluster) in own_machines for a in attached)


def attachments(item: Item) -> list[Item]:
    """Return the attachments of a volume, which may have several, or of a network interface."""
    if attachment := item.get("Attachment"):
        return [attachment]
    return list(item.get("Attachments", []))


def _address_networks(gateways: Sequence[Item]) -> dict[str, str]:
    """Return the VPC of each Elastic IP, by its id: its NAT gateway's, as AWS lists no VPC of an address."""
    return {
        address["AllocationId"]: gateway["VpcId"]
        for gateway in gateways
        for address in gateway.get("NatGatewayAddresses", [])
        if "AllocationId" in address
    }


def _resource(kind: Kind, item: Item, networks: Mapping[str, str]) -> Resource:
    of = tags_in(item)
    name = str(item.get(kind.named, "")) if kind.named else of.get("Name", "")
    resource_id = str(item.get(kind.id) or name)
    return Resource(
        kind=kind.name,
        id=resource_id,
        name=name,
        tags=of,
        stage=kind.stage,
        ends_within_s=kind.ends_within_s,
        network=networks.get(resource_id) or item.get("VpcId") or _attached_vpc(item),
        deleting=str(item.get("State", "")).lower() in _DELETED,
    )


def _attached_vpc(item: Item) -> str | None:
    """Return the VPC of an internet gateway."""
    return next(
        (str(attachment["VpcId"]) for attachment in item.get("Attachments", []) if "VpcId" in attachment),
        None,
    )
