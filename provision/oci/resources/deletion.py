"""The deletion of our resources that are no machines.

A 404 alone is no proof of absence, as OCI gives the same answer without permission: a list has to lack the resource,
too.
"""

from provision.errors import Blocked, CloudError, Denied, Gone
from provision.oci.api import Api, Json
from provision.oci.errors import policy_for
from provision.oci.resources.deletion_blockers import blockers
from provision.oci.resources.resource_types import ENDED, ENDING, is_live, kind_of, list_kind
from provision.records import Resource
from provision.rented import tags
from provision.waiting import poll

DELETE_PATIENCE_S = 15.0
MAX_NAMED = 5


def delete(api: Api, resource: Resource) -> None:
    """Remove a resource: see `Cloud.delete`."""
    assert tags.is_ours(resource.tags), f"{resource.kind} {resource.id} is not ours"
    operation = kind_of(resource.kind).operation("delete")
    try:
        api.call(operation, resource.id, again=True)
    except Gone:
        return _must_be_unlisted(api, resource)
    except Blocked as error:
        # OCI gives this answer for a resource that it is deleting already, too.
        state = _state(api, resource)
        if state in ENDED:
            return None
        if state not in ENDING:
            raise _blocked(api, resource, error) from error
    return _wait_gone(api, resource)


def _wait_gone(api: Api, resource: Resource) -> None:
    deleting = False
    for _ in poll(api.clock, DELETE_PATIENCE_S):
        state = _state(api, resource)
        if state in ENDED:
            return
        if deleting and state not in ENDING:
            # OCI ends the state TERMINATING of a subnet that still has a network interface.
            raise _blocked(
                api, resource, Blocked(f"OCI gave up deleting the {resource.kind} {resource.id}.", code=state)
            )
        deleting = deleting or state in ENDING
    raise Blocked(f"The {resource.kind} {resource.id} is still {state}.", code=state)


def _state(api: Api, resource: Resource) -> str:
    """Return the resource's state; TERMINATED if no list has it."""
    try:
        view: Json = api.call(kind_of(resource.kind).operation("get"), resource.id)
    except Gone:
        _must_be_unlisted(api, resource)
        return "TERMINATED"
    return str(view.get("lifecycleState"))


def _must_be_unlisted(api: Api, resource: Resource) -> None:
    """Raise Denied if a list still has a resource that a call does not find."""
    for _ in poll(api.clock, DELETE_PATIENCE_S):
        views = list_kind(api, resource.kind)
        if not any(view["id"] == resource.id and is_live(view) for view in views):
            return
    operation = kind_of(resource.kind).operation("delete").partition(".")[2]
    raise Denied(
        f"OCI lists the {resource.kind} {resource.id}, but says that it can't be found. This policy "
        f"statement is probably missing: `{policy_for(operation, api.compartment)}`.",
        operation=operation,
        code="NotAuthorizedOrNotFound",
    )


def _blocked(api: Api, resource: Resource, error: CloudError) -> Blocked:
    try:
        users = blockers(api, resource)
        more = f" and {len(users) - MAX_NAMED} more" if len(users) > MAX_NAMED else ""
        named = ", ".join(users[:MAX_NAMED]) + more
    except CloudError as other:
        named = f"something that can't be found out ({other})"
    message = f"The {resource.kind} {resource.id} is still used by {named}." if named else str(error)
    return Blocked(message, operation=error.operation, code=error.code)
