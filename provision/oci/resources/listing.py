"""What there is of ours beside machines, by tag."""

from collections.abc import Mapping

from provision.cloud import tags
from provision.cloud.records import Resource
from provision.oci.api import Api
from provision.oci.resources.resource_types import (
    GOING,
    GONE,
    KINDS,
    Kind,
    list_kind,
    tags_of,
)
from provision.parallel import run_all, values


def resources(api: Api, kinds: Mapping[str, Kind] = KINDS) -> tuple[Resource, ...]:
    """Everything of ours of these kinds, also what is on its way out."""
    found = values(run_all(lambda kind: list_kind(api, kind), tuple(kinds)))
    return tuple(
        Resource(
            kind=kind,
            id=view["id"],
            name=view.get("displayName") or view.get("name") or "",
            tags=tags_of(view),
            stage=kinds[kind].stage,
            going=view.get("lifecycleState") in GOING,
            ends_within_s=kinds[kind].ends_within_s,
        )
        for kind, views in zip(kinds, found, strict=True)
        for view in views
        if tags.is_ours(tags_of(view)) and view.get("lifecycleState") not in GONE
    )
