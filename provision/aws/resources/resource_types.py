"""The kinds of our resources, apart from instances, with the calls that list and delete them, and their lists."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from inventories.threads import run_all, together, values
from provision.aws import instances
from provision.aws.api import Api, Item
from provision.aws.requests import ours, tags_in
from provision.records import Resource
from provision.rented import tags


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of resource. The names of its calls and fields are made from `noun`."""

    name: str
    noun: str
    """AWS's noun for the kind, such as `NatGateway`."""
    stage: int
    end_verb: str = "delete"
    id_noun: str = ""
    """The noun in the field of its id. Empty: `noun`."""
    named: str | None = None
    """The field of its name. `None`: its name is a tag."""
    deleted_by_name: bool = False
    deleted_in_a_list: bool = False
    """Whether the call takes several ids, and its answer has the refused ones."""
    filters: Mapping[str, tuple[str, ...]] | None = None
    """Further filters of the list."""
    attachable: bool = False
    """Whether it can be attached to a machine, and ends with it then: no resource of its own."""
    slow: bool = False
    """Whether it exists for a while after AWS's answer to the deletion."""
    ends_within_s: float = 0.0
    """Longest time of that, if it is more than some seconds."""
    holds: str | None = None
    """The filter for the network interfaces that keep it from being deleted."""

    @property
    def key(self) -> str:
        """Name of the list in AWS's answer: `NatGateways`."""
        return f"{self.noun}{'es' if self.noun.endswith('s') else 's'}"

    @property
    def id(self) -> str:
        """The field of its id: `NatGatewayId`."""
        return f"{self.id_noun or self.noun}Id"

    @property
    def list(self) -> str:
        """The call that lists it: `describe_nat_gateways`."""
        return f"describe_{_snake(self.key)}"

    @property
    def delete(self) -> str:
        """The call that deletes it: `delete_nat_gateway`."""
        return f"{self.end_verb}_{_snake(self.key if self.deleted_in_a_list else self.noun)}"


def _snake(name: str) -> str:
    return re.sub(r"(?<=.)(?=[A-Z])", "_", name).lower()


_KINDS = (
    Kind(
        name="spot-request",
        noun="SpotInstanceRequest",
        stage=0,
        end_verb="cancel",
        deleted_in_a_list=True,
        filters={"state": ("open",)},
    ),
    Kind(name="network-interface", noun="NetworkInterface", stage=0, attachable=True),
    Kind(
        name="volume",
        noun="Volume",
        stage=0,
        filters={"status": ("creating", "available", "in-use", "error")},
        attachable=True,
        slow=True,
    ),
    Kind(
        name="security-group",
        noun="SecurityGroup",
        stage=1,
        id_noun="Group",
        named="GroupName",
        holds="group-id",
    ),
    Kind(name="key-pair", noun="KeyPair", stage=1, named="KeyName", deleted_by_name=True),
    Kind(
        name="placement-group",
        noun="PlacementGroup",
        stage=1,
        id_noun="Group",
        named="GroupName",
        deleted_by_name=True,
        filters={"state": ("pending", "available", "deleting")},
        slow=True,
    ),
    Kind(
        name="nat-gateway",
        noun="NatGateway",
        stage=2,
        filters={"state": ("pending", "failed", "available", "deleting")},
        slow=True,
        ends_within_s=600.0,
    ),
    Kind(
        name="vpc-endpoint",
        noun="VpcEndpoint",
        stage=2,
        deleted_in_a_list=True,
        filters={
            "vpc-endpoint-state": (
                "pendingAcceptance",
                "pending",
                "available",
                "deleting",
                "rejected",
                "failed",
            )
        },
        slow=True,
    ),
    # A NAT gateway has its address until it is gone, and an address keeps the internet gateway attached.
    Kind(name="elastic-ip", noun="Address", stage=3, end_verb="release", id_noun="Allocation"),
    Kind(name="subnet", noun="Subnet", stage=3, holds="subnet-id"),
    Kind(name="route-table", noun="RouteTable", stage=4),
    Kind(name="internet-gateway", noun="InternetGateway", stage=4),
    Kind(name="vpc", noun="Vpc", stage=5, holds="vpc-id"),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
"""By name, in the order in which they can be deleted."""

_DELETED = frozenset({"deleting", "deleted", "failed", "rejected"})


def resources(api: Api) -> tuple[Resource, ...]:
    """Return our resources in the region, without instances and resources that end with one."""
    listed_kinds, machines = together(
        lambda: values(run_all(partial(_items, api), _KINDS)), partial(instances.listed, api, None)
    )
    lists = dict(zip(KINDS, listed_kinds, strict=True))
    # AWS lists no VPC of an Elastic IP: it is that of its NAT gateway.
    networks = {
        address["AllocationId"]: gateway["VpcId"]
        for gateway in lists["nat-gateway"]
        for address in gateway.get("NatGatewayAddresses", [])
        if "AllocationId" in address
    }
    own_machines = {(machine.id, machine.tags.get(tags.CLUSTER_ID)) for machine in machines}
    return tuple(
        _resource(kind, item, networks)
        for kind in _KINDS
        for item in lists[kind.name]
        if not (kind.attachable and _goes_with(item, own_machines))
    )


def listed(api: Api, kind: Kind) -> list[Resource]:
    """Return our resources of a kind, with the ones that end with an instance."""
    return [_resource(kind, item, {}) for item in _items(api, kind)]


def listed_all(api: Api, names: Sequence[str]) -> tuple[Resource, ...]:
    """Return our resources of several kinds."""
    kinds = [KINDS[name] for name in names]
    return tuple(chain.from_iterable(values(run_all(partial(listed, api), kinds))))


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


def _resource(kind: Kind, item: Item, networks: Mapping[str, str]) -> Resource:
    of = tags_in(item)
    name = str(item.get(kind.named, "")) if kind.named else of.get("Name", "")
    resource_id = str(item.get(kind.id) or name)
    # Of an internet gateway.
    attached = (str(each["VpcId"]) for each in item.get("Attachments", []) if "VpcId" in each)
    return Resource(
        kind=kind.name,
        id=resource_id,
        name=name,
        tags=of,
        stage=kind.stage,
        ends_within_s=kind.ends_within_s,
        network=networks.get(resource_id) or item.get("VpcId") or next(attached, None),
        deleting=str(item.get("State", "")).lower() in _DELETED,
    )
