"""Our resources that are no machines, by tag."""

from collections.abc import Mapping

from inventories.threads import run_all, values
from provision.errors import Denied
from provision.oci.api import Api
from provision.oci.resources.resource_types import (
    ENDED,
    ENDING,
    KINDS,
    Kind,
    list_kind,
    tags_of,
)
from provision.records import Resource
from provision.rented import tags


def resources(api: Api, kinds: Mapping[str, Kind] = KINDS) -> tuple[Resource, ...]:
    """Return our resources of these kinds, also those that OCI is deleting.

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
