"""EKS as far as teardown and `reap` need it: our resources in one region of an account, and their removal.

The account, the network and all that these clusters share with virtual machines are AWS's.
"""

from inventories.threads import together
from provision.aws.cloud import AwsCloud, configured, sdk
from provision.eks import requests, resources
from provision.records import Instance, Resource, Target
from provision.rented import tags
from provision.rented.tags import without_managed_nodes
from provision.waiting import Clock

__all__ = ["EksCloud", "configured", "connect", "sdk"]


def connect(target: Target, *, clock: Clock) -> "EksCloud":
    """Return the account and region of `target`: see `provision.aws.cloud.connect`."""
    return EksCloud(target, clock=clock)


class EksCloud(AwsCloud):
    """One account in one region. Node groups start and end the machines."""

    name = requests.PROVIDER

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """Return virtual machines, which may need the network, and nodes whose node groups are gone."""

        def managed() -> set[str | None]:
            return {resource.tags.get(tags.CLUSTER_ID) for resource in resources.clusters(self.api)}

        return without_managed_nodes(super().instances(cluster_id), requests.PROVIDER, managed)

    def resources(self) -> tuple[Resource, ...]:
        """Return our resources by tag, each once: of EC2 and of the other services."""
        of_services = resources.resources(self.api)
        by_id = {resource.id: resource for resource in (*of_services, *super().resources())}
        return tuple(by_id.values())

    def billed(self) -> tuple[tuple[Instance, ...], tuple[Resource, ...]]:
        """Return all nodes, and the control planes. The rest is AWS's."""
        return together(super().instances, lambda: tuple(resources.clusters(self.api)))

    def delete(self, resource: Resource) -> None:
        """Remove a resource."""
        resources.delete(self.api, self._clock, resource)
