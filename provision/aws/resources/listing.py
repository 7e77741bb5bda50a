"""What there is of ours beside instances, by tag."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from provision.aws import instances
from provision.aws.api import Api, Item
from provision.aws.requests import ours, tags_in
from provision.aws.resources.resource_types import KINDS, Kind
from provision.parallel import run_all, values
from provision.records import Resource
from provision.rented import tags

_GOING = frozenset({"deleting", "deleted", "failed", "rejected"})


def resources(api: Api) -> tuple[Resource, ...]:
    """Everything of ours in the region that is no instance and does not go with one."""
    reads: list[Callable[[], Sequence[Any]]] = [partial(_items, api, kind) for kind in KINDS]
    reads.append(partial(instances.listed, api, None))
    *found, machines = values(run_all(lambda read: read(), reads))
    lists = dict(zip((kind.name for kind in KINDS), found, strict=True))
    networks = _address_networks(lists["nat-gateway"])
    own = {(machine.id, machine.tags.get(tags.CLUSTER_ID)) for machine in machines}
    return tuple(
        _resource(kind, item, networks)
        for kind in KINDS
        for item in lists[kind.name]
        if not (kind.attachable and _goes_with(item, own))
    )


def listed(api: Api, kind: Kind) -> list[Resource]:
    """Ours of one kind, also what goes with an instance."""
    return [_resource(kind, item, {}) for item in _items(api, kind)]


def _items(api: Api, kind: Kind) -> list[Any]:
    which = [*ours(), *({"Name": name, "Values": list(v)} for name, v in (kind.which or {}).items())]
    return api.pages(kind.list, kind.key, Filters=which)


def _goes_with(item: Item, own: Collection[tuple[str, str | None]]) -> bool:
    """Whether it is attached, and to nothing but machines of its own cluster: `own`, by id and cluster."""
    cluster = tags_in(item).get(tags.CLUSTER_ID)
    attached = attachments(item)
    return bool(attached) and all((a.get("InstanceId", ""), cluster) in own for a in attached)


def attachments(item: Item) -> list[Item]:
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
        going=str(item.get("State", "")).lower() in _GOING,
    )


def _attached_vpc(item: Item) -> str | None:
    """The VPC of an internet gateway."""
    return next((str(one["VpcId"]) for one in item.get("Attachments", []) if "VpcId" in one), None)
