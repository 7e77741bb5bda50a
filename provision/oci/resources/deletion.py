"""Deleting what is ours beside machines.

A 404 alone is never taken for absence, as OCI answers the same to who may not look: a list that was read
has to lack it too.
"""

from provision.errors import Blocked, CloudError, Denied, Gone
from provision.oci.api import Api, Json
from provision.oci.errors import policy_for
from provision.oci.resources.deletion_blockers import blockers
from provision.oci.resources.resource_types import GOING, GONE, is_live, kind_of, list_kind
from provision.records import Resource
from provision.rented import tags
from provision.waiting import PollWaits

DELETE_PATIENCE_S = 15.0
MOST_NAMED = 5


def delete(api: Api, resource: Resource) -> None:
    """As `Cloud.delete` says."""
    assert tags.is_ours(resource.tags), f"{resource.kind} {resource.id} is not ours"
    operation = kind_of(resource.kind).operation("delete")
    try:
        api.call(operation, resource.id, again=True)
    except Gone:
        return _must_be_unlisted(api, resource)
    except Blocked as error:
        # It is also the answer for what is being deleted already.
        state = _state(api, resource)
        if state in GONE:
            return None
        if state not in GOING:
            raise _blocked(api, resource, error) from error
    return _wait_gone(api, resource)


def _wait_gone(api: Api, resource: Resource) -> None:
    deadline = api.clock.now() + DELETE_PATIENCE_S
    waits = PollWaits()
    going = False
    while (state := _state(api, resource)) not in GONE:
        if state in GOING:
            going = True
        elif going:
            # A subnet that still holds a network interface is taken back from TERMINATING.
            raise _blocked(
                api, resource, Blocked(f"OCI gave up deleting the {resource.kind} {resource.id}.", code=state)
            )
        if api.clock.now() > deadline:
            raise Blocked(f"The {resource.kind} {resource.id} is still {state}.", code=state)
        api.clock.sleep(waits.next())


def _state(api: Api, resource: Resource) -> str:
    """Its state now; TERMINATED where a list has it no more."""
    try:
        view: Json = api.call(kind_of(resource.kind).operation("get"), resource.id)
    except Gone:
        _must_be_unlisted(api, resource)
        return "TERMINATED"
    return str(view.get("lifecycleState"))


def _must_be_unlisted(api: Api, resource: Resource) -> None:
    """Raise Denied where a list still has what could not be found by its id."""
    deadline = api.clock.now() + DELETE_PATIENCE_S
    waits = PollWaits()
    while any(view["id"] == resource.id and is_live(view) for view in list_kind(api, resource.kind)):
        if api.clock.now() > deadline:
            operation = kind_of(resource.kind).operation("delete").partition(".")[2]
            raise Denied(
                f"OCI lists the {resource.kind} {resource.id}, but says that it can't be found. This policy "
                f"statement is probably missing: `{policy_for(operation, api.compartment)}`.",
                operation=operation,
                code="NotAuthorizedOrNotFound",
            )
        api.clock.sleep(waits.next())


def _blocked(api: Api, resource: Resource, error: CloudError) -> Blocked:
    try:
        found = blockers(api, resource)
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        named = ", ".join(found[:MOST_NAMED]) + more
    except CloudError as other:
        named = f"something that can't be found out ({other})"
    message = f"The {resource.kind} {resource.id} is still used by {named}." if named else str(error)
    return Blocked(message, operation=error.operation, code=error.code)
