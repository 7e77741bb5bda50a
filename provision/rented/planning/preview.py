"""What a cloud's preview is made of: each resource is used where it is there, else created by its requests. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from provision.records import CloudCluster, PlannedRequest, PlannedResource, Preview, Resource
from provision.rented import tags

Call = tuple[str, dict[str, Any]]
"""An operation and its body."""


class Previewer:
    """Collects the requests and the resources of a preview, in the order in which they are made."""

    def __init__(self, cluster: CloudCluster, resources: Sequence[Resource]) -> None:
        self._cluster = cluster
        self._existing = [resource for resource in resources if not resource.going]
        self._requests: list[PlannedRequest] = []
        self._resources: list[PlannedResource] = []

    def shared(self, kind: str, wanted: Callable[[Resource], bool] = lambda _: True) -> str | None:
        """The id of a part of the network that all clusters share, where it is there."""
        return self._find(kind, lambda resource: tags.is_shared(resource.tags) and wanted(resource))

    def own(self, kind: str, wanted: Callable[[Resource], bool] = lambda _: True) -> str | None:
        """The id of a part of this cluster, where it is there."""
        return self._find(
            kind, lambda resource: resource.tags.get(tags.CLUSTER_ID) == self._cluster.id and wanted(resource)
        )

    def add(
        self,
        kind: str,
        found: str | None,
        *calls: Call,
        name: str = "",
        detail: str = "",
        hourly_usd: float = 0.0,
        placeholder: str | None = None,
    ) -> str:
        """Add a resource: `found` is its id where it is there, else `calls` make it.

        Returns its id, or what stands for it.
        """
        if found is None:
            self.call(*calls)
        self._resources.append(
            PlannedResource(
                action="create" if found is None else "use",
                kind=kind,
                name=name,
                id=found,
                detail=detail,
                hourly_usd=hourly_usd,
            )
        )
        return found or placeholder or f"<{kind}>"

    def call(self, *calls: Call) -> None:
        """Add requests."""
        self._requests += [PlannedRequest(operation=operation, body=body) for operation, body in calls]

    def preview(self) -> Preview:
        """What was collected."""
        return Preview(requests=tuple(self._requests), resources=tuple(self._resources))

    def _find(self, kind: str, wanted: Callable[[Resource], bool]) -> str | None:
        # The lowest id is the one that everybody takes where a race has made several.
        return min(
            (resource.id for resource in self._existing if resource.kind == kind and wanted(resource)),
            default=None,
        )
