"""The kinds of resources that a cluster or its network can have, and the names of their operations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.oci.api import Api, Json

GONE = frozenset({"TERMINATED", "DELETED"})
GOING = frozenset({"TERMINATING", "DELETING"})


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of resource: the names of its operations are made from `client` and `noun`."""

    client: str
    noun: str
    stage: int

    def operation(self, verb: str) -> str:
        """`delete` → `network.delete_vcn`; `list` → `network.list_vcns`."""
        return f"{self.client}.{verb}_{self.noun}{'s' if verb == 'list' else ''}"


KINDS = {
    "nsg": Kind(client="network", noun="network_security_group", stage=0),
    "compute-cluster": Kind(client="compute", noun="compute_cluster", stage=0),
    "boot-volume": Kind(client="storage", noun="boot_volume", stage=0),
    "subnet": Kind(client="network", noun="subnet", stage=1),
    # Before the gateways, so that no route leads to one that is to go.
    "route-table": Kind(client="network", noun="route_table", stage=2),
    "security-list": Kind(client="network", noun="security_list", stage=2),
    "internet-gateway": Kind(client="network", noun="internet_gateway", stage=3),
    "nat-gateway": Kind(client="network", noun="nat_gateway", stage=3),
    "service-gateway": Kind(client="network", noun="service_gateway", stage=3),
    "vcn": Kind(client="network", noun="vcn", stage=4),
}

KUBERNETES_KINDS = {
    "node-pool": Kind(client="container", noun="node_pool", stage=-4),
    "kubernetes-cluster": Kind(client="container", noun="cluster", stage=-3),
    "load-balancer": Kind(client="balancer", noun="load_balancer", stage=-2),
    "block-volume": Kind(client="storage", noun="volume", stage=-2),
}
"""Those of clusters of Kubernetes, and what controllers in them make: with our tags, as the cluster is told to."""
ENDS_WITHIN_S = 2400.0
"""How long OKE may take to remove a cluster or a node pool."""


def kind_of(name: str) -> Kind:
    """The kind of that name."""
    return (KINDS | KUBERNETES_KINDS)[name]


def tags_of(view: Mapping[str, Any]) -> dict[str, str]:
    """The freeform tags of anything."""
    return view.get("freeformTags") or {}


def is_live(view: Mapping[str, Any]) -> bool:
    """Whether it is there and stays."""
    return view.get("lifecycleState") not in GONE | GOING


def list_kind(api: Api, kind: str) -> list[Json]:
    """All of a kind in the compartment, whosever they are."""
    return api.listed(kind_of(kind).operation("list"))
