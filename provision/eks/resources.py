"""The resources of our clusters: their lists and their removal; `provision.aws` removes EC2's.

EKS's own, and those that AWS's controllers made for them. Controllers use tags of their own, with the Kubernetes
cluster's name, which nobody else's cluster has.
"""

import contextlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from inventories.threads import run_all, values
from provision.aws.api import Api
from provision.aws.requests import filters, ours, tags_in
from provision.aws.resources import deletion
from provision.aws.resources.resource_types import KINDS
from provision.eks import requests
from provision.eks.control_plane import issues
from provision.errors import Blocked, Gone
from provision.records import Resource
from provision.rented import tags
from provision.waiting import Clock, poll

ENDS_WITHIN_S = 1800.0
"""Longest time of the removal of a cluster or a node group: EKS waits 15 minutes for pods that may not be moved."""
STAGES: Mapping[str, int] = {
    requests.NODE_GROUP: -4,
    requests.CLUSTER: -3,
    requests.LOAD_BALANCER: -2,
    requests.CLASSIC_LOAD_BALANCER: -2,
    requests.TEMPLATE: -2,
    requests.ROLE: -2,
    requests.LOG_GROUP: -2,
    **{name: kind.stage for name, kind in KINDS.items()},
}
"""Stages of a teardown."""
LOGS = "/aws/eks/"
MAX_DESCRIBED = 20
"""Load balancers in one request for tags."""
OF_EKS = "eks-"
"""Begin of the names of the instance profiles that EKS makes of a node role."""
_CALLS = {
    requests.TEMPLATE: ("ec2", "delete_launch_template", "LaunchTemplateId"),
    requests.LOG_GROUP: ("logs", "delete_log_group", "logGroupName"),
    requests.LOAD_BALANCER: ("elbv2", "delete_load_balancer", "LoadBalancerArn"),
    requests.CLASSIC_LOAD_BALANCER: ("elb", "delete_load_balancer", "LoadBalancerName"),
}
"""Kind → service, call, and the field of the id."""


def resources(api: Api) -> tuple[Resource, ...]:
    """Return all resources in the region."""
    reads = (clusters, _roles, _templates, _log_groups, _load_balancers, _by_controllers)
    return tuple(chain.from_iterable(values(run_all(lambda read: read(api), reads))))


def clusters(api: Api) -> list[Resource]:
    """Return the Kubernetes clusters, and all of their node groups."""
    resources: list[Resource] = []
    for name in filter(requests.tags_of_name, api.pages("list_clusters", "clusters", service="eks")):
        try:
            cluster = api.call("describe_cluster", service="eks", name=name)["cluster"]
            groups = api.pages("list_nodegroups", "nodegroups", service="eks", clusterName=name)
        except Gone:
            continue  # removed since it was listed
        of = cluster.get("tags", {})
        # Somebody else may have a cluster of such a name: the tags decide.
        if of.get(tags.CLUSTER_ID) != requests.tags_of_name(name)[tags.CLUSTER_ID]:
            continue
        vpc = cluster.get("resourcesVpcConfig", {}).get("vpcId")
        deleting = cluster["status"] == "DELETING"
        resources.append(
            _resource(requests.CLUSTER, name, of, network=vpc, deleting=deleting, ends_within_s=ENDS_WITHIN_S)
        )
        resources += [_node_group(api, name, group, of, vpc) for group in groups]
    return resources


def _node_group(api: Api, cluster: str, group: str, of: Mapping[str, str], vpc: str | None) -> Resource:
    try:
        answer = api.call("describe_nodegroup", service="eks", clusterName=cluster, nodegroupName=group)
        status = answer["nodegroup"]["status"]
    except Gone:
        status = "DELETING"
    return _resource(
        requests.NODE_GROUP,
        f"{cluster}/{group}",
        of,
        network=vpc,
        deleting=status == "DELETING",
        ends_within_s=ENDS_WITHIN_S,
    )


def _roles(api: Api) -> list[Resource]:
    """Return the roles of this region's clusters; a role itself is in no region."""
    resources: list[Resource] = []
    for role in api.pages("list_roles", "Roles", service="iam", PathPrefix=requests.ROLE_PATH):
        name = role["RoleName"]
        try:
            pairs = api.pages("list_role_tags", "Tags", service="iam", RoleName=name)
        except Gone:
            continue
        of = {pair["Key"]: pair["Value"] for pair in pairs}
        if tags.is_of(of, requests.PROVIDER) and of.get(requests.REGION) == api.region:
            resources.append(_resource(requests.ROLE, name, of))
    return resources


def _templates(api: Api) -> list[Resource]:
    items = api.pages("describe_launch_templates", "LaunchTemplates", Filters=ours())
    return [
        _resource(requests.TEMPLATE, item["LaunchTemplateId"], of, name=item["LaunchTemplateName"])
        for item in items
        if tags.is_of(of := tags_in(item), requests.PROVIDER)
    ]


def _log_groups(api: Api) -> list[Resource]:
    """Return the log groups of clusters whose control plane's logs somebody has switched on."""
    prefix = f"{LOGS}gpuctl-"
    groups = api.pages("describe_log_groups", "logGroups", service="logs", logGroupNamePrefix=prefix)
    return [
        _resource(requests.LOG_GROUP, name, of)
        for name in (str(group["logGroupName"]) for group in groups)
        if (of := requests.tags_of_name(name.removeprefix(LOGS).partition("/")[0]))
    ]


def _load_balancers(api: Api) -> list[Resource]:
    """Return the load balancers of Kubernetes' services."""
    balancers = {
        balancer["LoadBalancerArn"]: balancer.get("VpcId")
        for balancer in api.pages("describe_load_balancers", "LoadBalancers", service="elbv2")
    }
    classic = {
        balancer["LoadBalancerName"]: balancer.get("VPCId")
        for balancer in api.pages("describe_load_balancers", "LoadBalancerDescriptions", service="elb")
    }
    tagged = _tagged(api, "elbv2", "ResourceArns", "ResourceArn", list(balancers))
    tagged_classic = _tagged(api, "elb", "LoadBalancerNames", "LoadBalancerName", list(classic))
    return [
        *(_resource(requests.LOAD_BALANCER, arn, of, network=balancers[arn]) for arn, of in tagged.items()),
        *(
            _resource(requests.CLASSIC_LOAD_BALANCER, name, of, network=classic[name])
            for name, of in tagged_classic.items()
        ),
    ]


def _tagged(
    api: Api, service: str, parameter: str, key: str, ids: Sequence[str]
) -> dict[str, Mapping[str, str]]:
    """Return the load balancers of our clusters, with our tags."""
    tagged: dict[str, Mapping[str, str]] = {}
    for first in range(0, len(ids), MAX_DESCRIBED):
        batch: dict[str, Any] = {parameter: list(ids[first : first + MAX_DESCRIBED])}
        answer = api.call("describe_tags", service=service, **batch)
        for entry in answer["TagDescriptions"]:
            if of := requests.tags_by_controllers(tags_in(entry)):
                tagged[entry[key]] = of
    return tagged


def _by_controllers(api: Api) -> list[Resource]:
    """Return EC2's resources of AWS's controllers: free network interfaces, volumes of claims, security groups."""
    free = filters(status="available")
    queries: Mapping[str, list[Any]] = {
        "network-interface": [*filters(tag_key=requests.INTERFACE_OF), *free],
        "volume": [*filters(tag_key=requests.VOLUME_OF), *free],
        "security-group": filters(
            tag_key=(requests.GROUP_OF, f"{requests.OWNED_BY}gpuctl-*", requests.BALANCED_FOR)
        ),
    }
    return [
        _resource(name, item[KINDS[name].id], of, network=item.get("VpcId"))
        for name, conditions in queries.items()
        for item in api.pages(KINDS[name].list, KINDS[name].key, Filters=conditions)
        if (of := requests.tags_by_controllers(tags_in(item)))
    ]


def _resource(
    kind: str,
    resource_id: str,
    of: Mapping[str, Any],
    *,
    name: str | None = None,
    network: str | None = None,
    deleting: bool = False,
    ends_within_s: float = 0.0,
) -> Resource:
    return Resource(
        kind=kind,
        id=resource_id,
        name=name or resource_id,
        tags=of,
        stage=STAGES[kind],
        network=network,
        deleting=deleting,
        ends_within_s=ends_within_s,
    )


def delete(api: Api, clock: Clock, resource: Resource) -> None:
    """Remove a resource. Raises Blocked while it is in use, or while EKS still changes it."""
    assert tags.is_ours(resource.tags), f"{resource.id} is not ours"
    try:
        if resource.kind in (requests.NODE_GROUP, requests.CLUSTER):
            _delete_slow(api, clock, resource)
        elif resource.kind == requests.ROLE:
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
    if resource.kind == requests.NODE_GROUP:
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
    minutes = ENDS_WITHIN_S / 60
    raise Blocked(
        f"The {resource.kind} {resource.id} in {api.region} is being deleted, which can take {minutes:.0f} minutes."
    )


def _problem(kind: str, described: Mapping[str, Any]) -> str:
    """Return why a node group or a cluster still exists, as a clause. Empty: EKS deletes it."""
    status = described["status"]
    if kind == requests.NODE_GROUP:
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
