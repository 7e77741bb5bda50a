"""The builder of a cloud's preview: each resource exists and is used, or is created by its requests. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from provision.records import CloudCluster, PlannedRequest, PlannedResource, Preview, Resource
from provision.rented import tags

Call = tuple[str, dict[str, Any]]
"""An operation and its body."""


class Previewer:
    """Collects the requests and the resources of a preview, in the order of their creation."""

    def __init__(self, cluster: CloudCluster, resources: Sequence[Resource]) -> None:
        self._cluster = cluster
        self._existing = [resource for resource in resources if not resource.deleting]
        self._requests: list[PlannedRequest] = []
        self._resources: list[PlannedResource] = []

    def shared(self, kind: str, fits: Callable[[Resource], bool] = lambda _: True) -> str | None:
        """Return the id of a part of the shared network. `None`: it does not exist."""
        return self._find(kind, lambda resource: tags.is_shared(resource.tags) and fits(resource))

    def of_cluster(self, kind: str, fits: Callable[[Resource], bool] = lambda _: True) -> str | None:
        """Return the id of a part of this cluster. `None`: it does not exist."""
        return self._find(
            kind, lambda resource: resource.tags.get(tags.CLUSTER_ID) == self._cluster.id and fits(resource)
        )

    def add(
        self,
        kind: str,
        existing: str | None,
        *calls: Call,
        name: str = "",
        detail: str = "",
        hourly_usd: float = 0.0,
        placeholder: str | None = None,
    ) -> str:
        """Add a resource with its id, or, if `existing` is `None`, the `calls` that make it.

        Returns its id, or the placeholder for it.
        """
        if existing is None:
            self.call(*calls)
        self._resources.append(
            PlannedResource(
                action="create" if existing is None else "use",
                kind=kind,
                name=name,
                id=existing,
                detail=detail,
                hourly_usd=hourly_usd,
            )
        )
        return existing or placeholder or f"<{kind}>"

    def call(self, *calls: Call) -> None:
        """Add requests."""
        self._requests += [PlannedRequest(operation=operation, body=body) for operation, body in calls]

    def preview(self) -> Preview:
        """Return the preview."""
        return Preview(requests=tuple(self._requests), resources=tuple(self._resources))

    def _find(self, kind: str, fits: Callable[[Resource], bool]) -> str | None:
        # All commands choose the lowest id after a race has made several.
        return min(
            (resource.id for resource in self._existing if resource.kind == kind and fits(resource)),
            default=None,
        )
