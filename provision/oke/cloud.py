"""OKE as far as teardown and `reap` need it: our resources in one compartment, and their removal.

The account, the network and all that these clusters share with virtual machines are OCI's.
"""

from dataclasses import replace

from provision.oci.cloud import OciCloud, configured, sdk
from provision.oci.cloud import connect as connect_oci
from provision.oci.resources.resource_types import KUBERNETES_KINDS, is_live, list_kind, resources, tags_of
from provision.oke.requests import PROVIDER
from provision.records import Instance, Resource, Target
from provision.rented import tags
from provision.rented.tags import without_managed_nodes
from provision.waiting import Clock

__all__ = ["OkeCloud", "configured", "connect", "sdk"]


def connect(target: Target, *, clock: Clock) -> "OkeCloud":
    """Return the account, region and compartment of `target`: see `provision.oci.cloud.connect`."""
    base = connect_oci(target, clock=clock)
    return OkeCloud(base.api, replace(base.target, provider=PROVIDER), base.consistency_s)


class OkeCloud(OciCloud):
    """One compartment in one region. Node pools start and end the machines."""

    name = PROVIDER

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """Return virtual machines, which may need the network, and nodes whose control plane is gone."""

        def managed() -> set[str | None]:
            return {
                tags_of(view).get(tags.CLUSTER_ID)
                for view in list_kind(self.api, "kubernetes-cluster")
                if is_live(view) or view.get("lifecycleState") == "DELETING"
            }

        return without_managed_nodes(super().instances(cluster_id), PROVIDER, managed)

    def billed(self) -> tuple[tuple[Instance, ...], tuple[Resource, ...]]:
        """Return all nodes, and the control planes."""
        control_planes = {"kubernetes-cluster": KUBERNETES_KINDS["kubernetes-cluster"]}
        return super().instances(), resources(self.api, control_planes)

    def resources(self) -> tuple[Resource, ...]:
        """Return our resources: of virtual machines' kinds, control planes, node pools, and those of controllers."""
        return (*super().resources(), *resources(self.api, KUBERNETES_KINDS))
