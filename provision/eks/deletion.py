"""The removal of resources of EKS, IAM and the load balancers; `provision.aws` removes those of EC2."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from provision.aws.api import Api
from provision.aws.resources import deletion
from provision.eks import listing, requests
from provision.eks.control_plane import issues
from provision.errors import Blocked, Gone
from provision.records import Resource
from provision.rented import tags
from provision.waiting import Clock, poll

Delete = Callable[[Api, Resource], None]

OF_EKS = "eks-"
"""Begin of the names of the instance profiles that EKS makes of a node role."""


def delete(api: Api, clock: Clock, resource: Resource) -> None:
    """Remove a resource. Raises Blocked while it is in use, or while EKS still changes it."""
    assert tags.is_ours(resource.tags), f"{resource.id} is not ours"
    known = _DELETE.get(resource.kind)
    if known is None:
        deletion.delete(api, clock, resource)
        return
    try:
        known(api, resource)
    except Gone:
        return
    if resource.kind in _PROBLEM:
        _await_gone(api, clock, resource)


def _node_group(api: Api, resource: Resource) -> None:
    cluster, _, group = resource.id.partition("/")
    if not resource.deleting:
        api.call("delete_nodegroup", service="eks", again=True, clusterName=cluster, nodegroupName=group)


def _cluster(api: Api, resource: Resource) -> None:
    """Delete a cluster; EKS removes its add-ons and access entries."""
    if not resource.deleting:
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
    """Delete a role with its policies and its instance profiles, which EKS made."""
    role: dict[str, Any] = {"RoleName": resource.id}
    for policy in api.pages("list_attached_role_policies", "AttachedPolicies", service="iam", **role):
        with contextlib.suppress(Gone):
            arn = policy["PolicyArn"]
            api.call("detach_role_policy", service="iam", again=True, PolicyArn=arn, **role)
    for name in api.pages("list_role_policies", "PolicyNames", service="iam", **role):
        with contextlib.suppress(Gone):
            api.call("delete_role_policy", service="iam", again=True, PolicyName=name, **role)
    for profile in api.pages("list_instance_profiles_for_role", "InstanceProfiles", service="iam", **role):
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
    requests.NODE_GROUP: _node_group,
    requests.CLUSTER: _cluster,
    requests.TEMPLATE: _template,
    requests.ROLE: _role,
    requests.LOG_GROUP: _log_group,
    requests.LOAD_BALANCER: _load_balancer,
    requests.CLASSIC_LOAD_BALANCER: _classic_load_balancer,
}


def _await_gone(api: Api, clock: Clock, resource: Resource) -> None:
    for _ in poll(clock, deletion.GONE_WITHIN_S):
        try:
            problem = _PROBLEM[resource.kind](api, resource)
        except Gone:
            return
        if problem:
            raise Blocked(
                f"EKS could not remove the {resource.kind} {resource.id} in {api.region}: {problem}."
            )
    minutes = listing.ENDS_WITHIN_S / 60
    raise Blocked(
        f"The {resource.kind} {resource.id} in {api.region} is being deleted, which can take {minutes:.0f} minutes."
    )


def _cluster_problem(api: Api, resource: Resource) -> str:
    """Return why the cluster still exists, as a clause. Empty: EKS deletes it. Raises Gone."""
    cluster = api.call("describe_cluster", service="eks", name=resource.id)["cluster"]
    return "" if cluster["status"] == "DELETING" else f"its status is {cluster['status']}"


def _node_group_problem(api: Api, resource: Resource) -> str:
    """Return why the group still exists, as a clause. Empty: EKS deletes it. Raises Gone."""
    cluster, _, name = resource.id.partition("/")
    answer = api.call("describe_nodegroup", service="eks", clusterName=cluster, nodegroupName=name)
    group = answer["nodegroup"]
    return issues(group) if group["status"] == "DELETE_FAILED" else ""


_PROBLEM: Mapping[str, Callable[[Api, Resource], str]] = {
    requests.NODE_GROUP: _node_group_problem,
    requests.CLUSTER: _cluster_problem,
}
"""Functions that return why a slow resource still exists."""
