"""Removing what is EKS's, IAM's and the load balancers'; what is EC2's is removed by `provision.aws`."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from provision.aws.api import Api
from provision.aws.resources import deletion
from provision.eks.lists import whole
from provision.eks.resources import listing
from provision.errors import Blocked, Gone
from provision.records import Resource
from provision.rented import tags
from provision.waiting import Clock, PollWaits

Delete = Callable[[Api, Resource], None]

OF_EKS = "eks-"
"""What the instance profiles' names begin with that EKS makes of a node role."""


def delete(api: Api, clock: Clock, resource: Resource) -> None:
    """Remove a resource. Raises Blocked while something uses it, or while EKS is at it."""
    assert tags.is_ours(resource.tags), f"{resource.id} is not ours"
    known = _DELETE.get(resource.kind)
    if known is None:
        deletion.delete(api, clock, resource)
        return
    try:
        known(api, resource)
    except Gone:
        return
    if resource.kind in _STATUS:
        _await_gone(api, clock, resource)


def _node_group(api: Api, resource: Resource) -> None:
    cluster, _, group = resource.id.partition("/")
    if not resource.going:
        api.call("delete_nodegroup", service="eks", again=True, clusterName=cluster, nodegroupName=group)


def _cluster(api: Api, resource: Resource) -> None:
    """EKS removes add-ons and access entries with it."""
    if not resource.going:
        api.call("delete_cluster", service="eks", again=True, name=resource.id)


def _template(api: Api, resource: Resource) -> None:
    api.call("delete_launch_template", again=True, LaunchTemplateId=resource.id)


def _log_group(api: Api, resource: Resource) -> None:
    api.call("delete_log_group", service="logs", again=True, logGroupName=resource.id)


def _load_balancer(api: Api, resource: Resource) -> None:
    api.call("delete_load_balancer", service="elbv2", again=True, LoadBalancerArn=resource.id)


def _classic_load_balancer(api: Api, resource: Resource) -> None:
    api.call("delete_load_balancer", service="elb", again=True, LoadBalancerName=resource.id)


def _role(api: Api, resource: Resource) -> None:
    """With what hangs on it: policies, and the instance profiles that EKS made of it."""
    role: dict[str, Any] = {"RoleName": resource.id}
    for policy in whole(api, "iam", "list_attached_role_policies", "AttachedPolicies", **role):
        with contextlib.suppress(Gone):
            arn = policy["PolicyArn"]
            api.call("detach_role_policy", service="iam", again=True, PolicyArn=arn, **role)
    for name in whole(api, "iam", "list_role_policies", "PolicyNames", **role):
        with contextlib.suppress(Gone):
            api.call("delete_role_policy", service="iam", again=True, PolicyName=name, **role)
    for profile in whole(api, "iam", "list_instance_profiles_for_role", "InstanceProfiles", **role):
        name = profile["InstanceProfileName"]
        with contextlib.suppress(Gone):
            api.call(
                "remove_role_from_instance_profile",
                service="iam",
                again=True,
                InstanceProfileName=name,
                **role,
            )
        if name.startswith(OF_EKS):
            with contextlib.suppress(Gone):
                api.call("delete_instance_profile", service="iam", again=True, InstanceProfileName=name)
    api.call("delete_role", service="iam", again=True, **role)


_DELETE: Mapping[str, Delete] = {
    listing.NODE_GROUP: _node_group,
    listing.CLUSTER: _cluster,
    listing.TEMPLATE: _template,
    listing.ROLE: _role,
    listing.LOG_GROUP: _log_group,
    listing.LOAD_BALANCER: _load_balancer,
    listing.CLASSIC_LOAD_BALANCER: _classic_load_balancer,
}


def _await_gone(api: Api, clock: Clock, resource: Resource) -> None:
    deadline = clock.now() + deletion.GONE_WITHIN_S
    waits = PollWaits()
    while True:
        try:
            told = _STATUS[resource.kind](api, resource)
        except Gone:
            return
        if told:
            raise Blocked(f"EKS could not remove the {resource.kind} {resource.id} in {api.region}: {told}.")
        if clock.now() > deadline:
            minutes = listing.ENDS_WITHIN_S / 60
            raise Blocked(
                f"The {resource.kind} {resource.id} in {api.region} is being deleted, which can take {minutes:.0f} "
                "minutes."
            )
        clock.sleep(waits.next())


def _cluster_problem(api: Api, resource: Resource) -> str:
    """Why it does not go. Raises Gone."""
    cluster = api.call("describe_cluster", service="eks", name=resource.id)["cluster"]
    return "" if cluster["status"] == "DELETING" else f"its status is {cluster['status']}"


def _node_group_problem(api: Api, resource: Resource) -> str:
    """Why it does not go. Raises Gone."""
    cluster, _, name = resource.id.partition("/")
    told = api.call("describe_nodegroup", service="eks", clusterName=cluster, nodegroupName=name)
    group = told["nodegroup"]
    if group["status"] != "DELETE_FAILED":
        return ""
    issues = group.get("health", {}).get("issues", [])
    return "; ".join(f"{one['code']}: {one['message']}" for one in issues) or "it says DELETE_FAILED"


_STATUS: Mapping[str, Callable[[Api, Resource], str]] = {
    listing.NODE_GROUP: _node_group_problem,
    listing.CLUSTER: _cluster_problem,
}
"""What tells whether a resource that goes slowly is still there."""
