"""The deletion of our resources that are no machines.

A 404 alone is no proof of absence, as OCI gives the same answer without permission: a list has to lack the resource,
too.
"""

from inventories.text import first_of
from inventories.threads import run_all, values
from provision.errors import Blocked, CloudError, Denied, Gone
from provision.oci.api import Api, Json
from provision.oci.errors import policy_for
from provision.oci.resources.resource_types import ENDED, ENDING, KINDS, is_live, kind_of, list_kind
from provision.records import Resource
from provision.rented import tags
from provision.waiting import poll

DELETE_PATIENCE_S = 15.0
MAX_NAMED = 5

_VCN_KINDS = tuple(name for name, kind in KINDS.items() if kind.client == "network" and name != "vcn")


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
    deleting = False
    for _ in poll(api.clock, DELETE_PATIENCE_S):
        state = _state(api, resource)
        if state in ENDED:
            return None
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
        named = first_of(_blockers(api, resource), MAX_NAMED)
    except CloudError as other:
        named = f"something that can't be found out ({other})"
    message = f"The {resource.kind} {resource.id} is still used by {named}." if named else str(error)
    return Blocked(message, operation=error.operation, code=error.code)


def _blockers(api: Api, resource: Resource) -> list[str]:
    """Return the names of a resource's users, ours or not, by the compartment's lists."""
    if resource.kind == "nsg":
        members = api.list_all("network.list_network_security_group_vnics", resource.id)
        return [f"VNIC {member['vnicId']} of {member.get('resourceId') or 'nobody'}" for member in members]
    if resource.kind == "compute-cluster":
        machines = api.listed("compute.list_instances", compute_cluster_id=resource.id)
        return [f"instance {machine['id']}" for machine in machines if is_live(machine)]
    if resource.kind == "subnet":
        held = api.listed("compute.list_vnic_attachments")
        return [
            f"VNIC {attachment.get('vnicId')} of {attachment['instanceId']}"
            for attachment in held
            if attachment.get("subnetId") == resource.id and attachment["lifecycleState"] != "DETACHED"
        ]
    if resource.kind in ("route-table", "security-list"):
        return [
            f"subnet {view['id']}"
            for view in _live(api, "subnet")
            if resource.id in (view.get("routeTableId"), *view.get("securityListIds", ()))
        ]
    if resource.kind == "vcn":
        vcn: Json = api.call("network.get_vcn", resource.id)
        defaults = {vcn.get("defaultRouteTableId"), vcn.get("defaultSecurityListId")}
        lists = values(run_all(lambda kind: _live(api, kind), _VCN_KINDS))
        return [
            f"{kind} {view['id']}"
            for kind, views in zip(_VCN_KINDS, lists, strict=True)
            for view in views
            if view.get("vcnId") == resource.id and view["id"] not in defaults
        ]
    return [
        f"route-table {view['id']}"
        for view in _live(api, "route-table")
        if any(route["networkEntityId"] == resource.id for route in view.get("routeRules", ()))
    ]


def _live(api: Api, kind: str) -> list[Json]:
    return [view for view in list_kind(api, kind) if is_live(view)]
