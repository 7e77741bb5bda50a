"""The names of the users that keep a resource from being deleted; OCI's own answer names one at most."""

from provision.oci.api import Api, Json
from provision.oci.resources.resource_types import KINDS, is_live, list_kind
from provision.parallel import run_all, values
from provision.records import Resource

_VCN_KINDS = tuple(name for name, kind in KINDS.items() if kind.client == "network" and name != "vcn")


def blockers(api: Api, resource: Resource) -> list[str]:
    """Return the names of a resource's users, ours or not, by the compartment's lists."""
    if resource.kind == "nsg":
        members = api.list_all("network.list_network_security_group_vnics", resource.id)
        return [f"VNIC {member['vnicId']} of {member.get('resourceId') or 'nobody'}" for member in members]
    if resource.kind == "compute-cluster":
        machines = api.listed("compute.list_instances", compute_cluster_id=resource.id)
        return [f"instance {machine['id']}" for machine in machines if is_live(machine)]
    if resource.kind == "subnet":
        return _of_subnet(api, resource.id)
    if resource.kind in ("route-table", "security-list"):
        return [
            f"subnet {view['id']}"
            for view in _live(api, "subnet")
            if resource.id in (view.get("routeTableId"), *view.get("securityListIds", ()))
        ]
    if resource.kind == "vcn":
        return _of_vcn(api, resource.id)
    return [
        f"route-table {view['id']}"
        for view in _live(api, "route-table")
        if any(route["networkEntityId"] == resource.id for route in view.get("routeRules", ()))
    ]


def _of_subnet(api: Api, subnet_id: str) -> list[str]:
    held = api.listed("compute.list_vnic_attachments")
    return [
        f"VNIC {attachment.get('vnicId')} of {attachment['instanceId']}"
        for attachment in held
        if attachment.get("subnetId") == subnet_id and attachment["lifecycleState"] != "DETACHED"
    ]


def _of_vcn(api: Api, vcn_id: str) -> list[str]:
    vcn: Json = api.call("network.get_vcn", vcn_id)
    defaults = {vcn.get("defaultRouteTableId"), vcn.get("defaultSecurityListId")}
    lists = values(run_all(lambda kind: _live(api, kind), _VCN_KINDS))
    return [
        f"{kind} {view['id']}"
        for kind, views in zip(_VCN_KINDS, lists, strict=True)
        for view in views
        if view.get("vcnId") == vcn_id and view["id"] not in defaults
    ]


def _live(api: Api, kind: str) -> list[Json]:
    return [view for view in list_kind(api, kind) if is_live(view)]
