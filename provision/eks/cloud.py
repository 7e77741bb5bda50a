"""EKS as far as teardown and `reap` need it: what there is of ours in one region of an account, and its removal.

The account is AWS's, and so are the network and whatever else clusters of virtual machines share with these.
"""

from provision.aws import instances as machines
from provision.aws.cloud import AwsCloud, configured, sdk
from provision.aws.infrastructure.find_or_create import ResourceMaker
from provision.eks import names
from provision.eks.resources import deletion, listing
from provision.records import Instance, Resource, Target
from provision.rented import tags
from provision.waiting import Clock

__all__ = ["EksCloud", "configured", "connect", "sdk"]


def connect(target: Target, *, clock: Clock) -> "EksCloud":
    """The account and region of `target`: see `provision.aws.cloud.connect`."""
    return EksCloud(target, clock=clock)


class EksCloud(AwsCloud):
    """Node groups start and end their machines, so that none is launched or ended by us."""

    name = names.PROVIDER

    def __init__(self, target: Target, *, clock: Clock) -> None:
        super().__init__(target, clock=clock)
        self.maker: ResourceMaker = self._maker

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """Clusters of virtual machines, which may need the network; and nodes whose node groups are gone."""
        found = machines.listed(self.api, cluster_id)
        if not any(_is_node(machine) for machine in found):
            return found
        managed = {resource.tags.get(tags.CLUSTER_ID) for resource in listing.clusters(self.api)}
        return tuple(
            machine
            for machine in found
            if not _is_node(machine) or machine.tags.get(tags.CLUSTER_ID) not in managed
        )

    def resources(self) -> tuple[Resource, ...]:
        """By tag, each once: what EC2 has, and what the other services have."""
        own = listing.resources(self.api)
        found = {resource.id: resource for resource in (*own, *super().resources())}
        return tuple(found.values())

    def delete(self, resource: Resource) -> None:
        """One resource."""
        deletion.delete(self.api, self._clock, resource)

    def nodes(self, cluster_id: str) -> tuple[Instance, ...]:
        """The machines of a cluster's node groups."""
        return tuple(one for one in machines.listed(self.api, cluster_id) if one.alive)


def _is_node(machine: Instance) -> bool:
    return tags.is_of(machine.tags, names.PROVIDER)
