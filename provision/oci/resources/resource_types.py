"""The kinds of resources that a cluster or its network can have, the names of their operations, and their lists."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inventories.threads import run_all, values
from provision.errors import Denied
from provision.oci.api import Api, Json
from provision.oci.description import has_autoscaling
from provision.records import Resource
from provision.rented import tags

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


def resources(api: Api, kinds: Mapping[str, Kind] = KINDS) -> tuple[Resource, ...]:
    """Return our resources of these kinds, with the ones that OCI is deleting.

    Without the right to list pools, each cluster whose machines joined one counts as a pool; its removal names the
    right.
    """
    outcomes = run_all(lambda kind: list_kind(api, kind), tuple(kinds))
    listed: list[Resource] = []
    for (kind, described), views in zip(kinds.items(), outcomes, strict=True):
        if isinstance(views, Denied) and described.optional:
            listed += _unlisted_pools(api) if kind == "instance-pool" else []
            continue
        listed += [
            Resource(
                kind=kind,
                id=view["id"],
                name=view.get("displayName") or view.get("name") or "",
                tags=tags_of(view),
                stage=described.stage,
                deleting=view.get("lifecycleState") in ENDING,
                ends_within_s=described.ends_within_s,
            )
            for view in values([views])[0]
            if tags.is_ours(tags_of(view)) and view.get("lifecycleState") not in ENDED
        ]
    return tuple(listed)


def _unlisted_pools(api: Api) -> list[Resource]:
    """Return a pool for each cluster of ours that has, or had, machines in a pool."""
    machines = [tags_of(view) for view in api.listed("compute.list_instances")]
    members = {of[tags.CLUSTER_ID]: of for of in machines if tags.is_clusters(of) and tags.POOL in of}
    stage = KINDS["instance-pool"].stage
    return [
        Resource(kind="instance-pool", id=f"of cluster {of[tags.CLUSTER]}", name="", tags=of, stage=stage)
        for of in members.values()
    ]
