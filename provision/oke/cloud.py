"""OKE as far as teardown and `reap` need it: what there is of ours in one compartment, and its removal.

The account is OCI's, and so are the network and whatever else clusters of virtual machines share with these.
"""

from dataclasses import replace

from provision.oci.api import Api
from provision.oci.cloud import OciCloud, configured, sdk
from provision.oci.cloud import connect as connect_oci
from provision.oci.resources import listing
from provision.oci.resources.resource_types import KUBERNETES_KINDS, is_live, list_kind, tags_of
from provision.oke import names
from provision.records import Instance, Resource, Target
from provision.rented import tags
from provision.waiting import Clock

__all__ = ["OkeCloud", "configured", "connect", "sdk"]


def connect(target: Target, *, clock: Clock) -> "OkeCloud":
    """The account, region and compartment of `target`: see `provision.oci.cloud.connect`."""
    base = connect_oci(target, clock=clock)
    return OkeCloud(base.api, replace(base.target, provider=names.PROVIDER), base.consistency_s)


class OkeCloud(OciCloud):
    """Node pools start and end their machines, so that none is launched or ended by us."""

    name = names.PROVIDER

    def __init__(self, api: Api, target: Target, consistency_s: float) -> None:
        super().__init__(api, target, consistency_s)

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """Clusters of virtual machines, which may need the network; and nodes whose control plane is gone."""
        found = super().instances(cluster_id)
        if not any(_is_node(machine) for machine in found):
            return found
        managed = {
            tags_of(view).get(tags.CLUSTER_ID)
            for view in list_kind(self.api, "kubernetes-cluster")
            if is_live(view) or view.get("lifecycleState") == "DELETING"
        }
        return tuple(
            machine
            for machine in found
            if not _is_node(machine) or machine.tags.get(tags.CLUSTER_ID) not in managed
        )

    def resources(self) -> tuple[Resource, ...]:
        """What there is of virtual machines' kinds, control planes, node pools, and what controllers made."""
        return (*super().resources(), *listing.resources(self.api, KUBERNETES_KINDS))


def _is_node(machine: Instance) -> bool:
    return tags.is_of(machine.tags, names.PROVIDER)
