"""The kinds of resources that a cluster or its network can have, and the names of their operations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.oci.api import Api, Json
from provision.oci.description import has_autoscaling

ENDED = frozenset({"TERMINATED", "DELETED"})
ENDING = frozenset({"TERMINATING", "DELETING"})


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of resource: the names of its operations are made from `client` and `noun`."""

    client: str
    noun: str
    stage: int
    end_verb: str = "delete"
    ends_within_s: float = 0.0
    """Longest time of its removal, if it is more than some seconds."""
    optional: bool = False
    """Whether clusters can do without, so that an account needs no right to list resources of the kind."""

    def operation(self, verb: str) -> str:
        """Return `network.delete_vcn` for `delete`, `network.list_vcns` for `list`."""
        verb = self.end_verb if verb == "delete" else verb
        return f"{self.client}.{verb}_{self.noun}{'s' if verb == 'list' else ''}"


KINDS = {
    # A pool goes before its schedule, which ends the machines that the pool may still make.
    "instance-pool": Kind(
        client="management",
        noun="instance_pool",
        stage=-3,
        end_verb="terminate",
        ends_within_s=900.0,
        optional=True,
    ),
    "autoscaling-configuration": Kind(
        client="autoscaling", noun="auto_scaling_configuration", stage=-2, optional=True
    ),
    "instance-configuration": Kind(
        client="management", noun="instance_configuration", stage=-1, optional=True
    ),
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

ENDS_WITHIN_S = 2400.0
"""Longest time that OKE takes to remove a cluster or a node pool."""

KUBERNETES_KINDS = {
    "node-pool": Kind(client="container", noun="node_pool", stage=-4, ends_within_s=ENDS_WITHIN_S),
    "kubernetes-cluster": Kind(client="container", noun="cluster", stage=-3, ends_within_s=ENDS_WITHIN_S),
    "load-balancer": Kind(client="balancer", noun="load_balancer", stage=-2, ends_within_s=ENDS_WITHIN_S),
    "block-volume": Kind(client="storage", noun="volume", stage=-2, ends_within_s=ENDS_WITHIN_S),
}
"""Kinds of Kubernetes clusters and of their controllers, which give them the cluster's tags."""


def kind_of(name: str) -> Kind:
    """Return the kind of that name."""
    return (KINDS | KUBERNETES_KINDS)[name]


def tags_of(view: Mapping[str, Any]) -> dict[str, str]:
    """Return the freeform tags of a view."""
    return view.get("freeformTags") or {}


def is_live(view: Mapping[str, Any]) -> bool:
    """Return whether a view is of a resource that exists and is not being deleted."""
    return view.get("lifecycleState") not in ENDED | ENDING


def list_kind(api: Api, kind: str) -> list[Json]:
    """Return all resources of a kind in the compartment, whoever made them.

    Empty for a kind that the region does not have. Raises CloudError.
    """
    described = kind_of(kind)
    if described.client == "autoscaling" and not has_autoscaling(api.credentials.region):
        return []
    return api.listed(described.operation("list"))
