"""What there is of ours beside machines, by tag."""

from provision.cloud import tags
from provision.cloud.records import Resource
from provision.oci.api import Api
from provision.oci.resources.resource_types import GOING, GONE, KINDS, list_kind, tags_of
from provision.parallel import run_all, values


def resources(api: Api) -> tuple[Resource, ...]:
    """Everything of ours, also what is on its way out."""
    kinds = tuple(KINDS)
    found = values(run_all(lambda kind: list_kind(api, kind), kinds))
    return tuple(
        Resource(
            kind=kind,
            id=view["id"],
            name=view.get("displayName") or "",
            tags=tags_of(view),
            stage=KINDS[kind].stage,
            going=view.get("lifecycleState") in GOING,
        )
        for kind, views in zip(kinds, found, strict=True)
        for view in views
        if tags.is_ours(tags_of(view)) and view.get("lifecycleState") not in GONE
    )
