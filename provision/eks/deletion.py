"""The removal of resources of EKS, IAM and the load balancers; `provision.aws` removes those of EC2."""

import contextlib
from collections.abc import Mapping
from typing import Any

from provision.aws.api import Api
from provision.aws.resources import deletion
from provision.eks import listing
from provision.eks.control_plane import issues
from provision.eks.requests import (
    CLASSIC_LOAD_BALANCER,
    CLUSTER,
    LOAD_BALANCER,
    LOG_GROUP,
    NODE_GROUP,
    ROLE,
    TEMPLATE,
)
from provision.errors import Blocked, Gone
from provision.records import Resource
from provision.rented import tags
from provision.waiting import Clock, poll

OF_EKS = "eks-"
"""Begin of the names of the instance profiles that EKS makes of a node role."""
_CALLS = {
    TEMPLATE: ("ec2", "delete_launch_template", "LaunchTemplateId"),
    LOG_GROUP: ("logs", "delete_log_group", "logGroupName"),
    LOAD_BALANCER: ("elbv2", "delete_load_balancer", "LoadBalancerArn"),
    CLASSIC_LOAD_BALANCER: ("elb", "delete_load_balancer", "LoadBalancerName"),
}
"""Kind → service, call, and the field of the id."""


def delete(api: Api, clock: Clock, resource: Resource) -> None:
    """Remove a resource. Raises Blocked while it is in use, or while EKS still changes it."""
    assert tags.is_ours(resource.tags), f"{resource.id} is not ours"
    try:
        if resource.kind in (NODE_GROUP, CLUSTER):
            _delete_slow(api, clock, resource)
        elif resource.kind == ROLE:
            _delete_role(api, resource.id)
        elif resource.kind in _CALLS:
            service, operation, field = _CALLS[resource.kind]
            ids: dict[str, Any] = {field: resource.id}
            api.call(operation, service=service, again=True, **ids)
        else:
            deletion.delete(api, clock, resource)
    except Gone:
        return


def _delete_slow(api: Api, clock: Clock, resource: Resource) -> None:
    """Delete a node group, or a cluster with its add-ons and access entries, and wait a moment. Raises Gone."""
    noun = "cluster"
    ids: dict[str, Any] = {"name": resource.id}
    if resource.kind == NODE_GROUP:
        cluster, _, group = resource.id.partition("/")
        noun, ids = "nodegroup", {"clusterName": cluster, "nodegroupName": group}
    if not resource.deleting:
        api.call(f"delete_{noun}", service="eks", again=True, **ids)
    for _ in poll(clock, deletion.GONE_WITHIN_S):
        described = api.call(f"describe_{noun}", service="eks", **ids)[noun]
        if problem := _problem(resource.kind, described):
            raise Blocked(
                f"EKS could not remove the {resource.kind} {resource.id} in {api.region}: {problem}."
            )
    minutes = listing.ENDS_WITHIN_S / 60
    raise Blocked(
        f"The {resource.kind} {resource.id} in {api.region} is being deleted, which can take {minutes:.0f} minutes."
    )


def _problem(kind: str, described: Mapping[str, Any]) -> str:
    """Return why a node group or a cluster still exists, as a clause. Empty: EKS deletes it."""
    status = described["status"]
    if kind == NODE_GROUP:
        return issues(described) if status == "DELETE_FAILED" else ""
    return "" if status == "DELETING" else f"its status is {status}"


def _delete_role(api: Api, name: str) -> None:
    """Delete a role with its policies and its instance profiles, which EKS made."""
    role: dict[str, Any] = {"RoleName": name}
    for policy in api.pages("list_attached_role_policies", "AttachedPolicies", service="iam", **role):
        with contextlib.suppress(Gone):
            arn = policy["PolicyArn"]
            api.call("detach_role_policy", service="iam", again=True, PolicyArn=arn, **role)
    for policy_name in api.pages("list_role_policies", "PolicyNames", service="iam", **role):
        with contextlib.suppress(Gone):
            api.call("delete_role_policy", service="iam", again=True, PolicyName=policy_name, **role)
    for profile in api.pages("list_instance_profiles_for_role", "InstanceProfiles", service="iam", **role):
        profile_name = profile["InstanceProfileName"]
        with contextlib.suppress(Gone):
            api.call(
                "remove_role_from_instance_profile",
                service="iam",
                again=True,
                InstanceProfileName=profile_name,
                **role,
            )
        if profile_name.startswith(OF_EKS):
            with contextlib.suppress(Gone):
                api.call(
                    "delete_instance_profile", service="iam", again=True, InstanceProfileName=profile_name
                )
    api.call("delete_role", service="iam", again=True, **role)
