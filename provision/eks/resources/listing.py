"""What there is of clusters of ours: EKS's own resources, and what AWS's controllers made for them.

What a controller made has its own tags, with the Kubernetes cluster's name, which is none that anybody else has.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from provision.aws.api import Api
from provision.aws.requests import filters, ours, tags_in
from provision.eks import names
from provision.eks.lists import whole
from provision.errors import Gone
from provision.parallel import run_all, values
from provision.records import Resource
from provision.rented import tags

ENDS_WITHIN_S = 1800.0
"""How long EKS may take to remove a cluster or a node group: for pods that may not be moved it waits 15 minutes."""
NODE_GROUP, CLUSTER = "node-group", "kubernetes-cluster"
TEMPLATE, ROLE, LOG_GROUP = "launch-template", "role", "log-group"
LOAD_BALANCER, CLASSIC_LOAD_BALANCER = "load-balancer", "classic-load-balancer"
STAGES: Mapping[str, int] = {
    NODE_GROUP: -4,
    CLUSTER: -3,
    LOAD_BALANCER: -2,
    CLASSIC_LOAD_BALANCER: -2,
    TEMPLATE: -2,
    ROLE: -2,
    LOG_GROUP: -2,
    "network-interface": 0,
    "volume": 0,
    "security-group": 1,
}
"""The last three are EC2's, at the stages that `provision.aws` has for them."""
LOGS = "/aws/eks/"
MOST_DESCRIBED = 20
"""Load balancers whose tags one call tells."""


def resources(api: Api) -> tuple[Resource, ...]:
    """All of it in the region."""
    reads: list[Callable[[], Sequence[Resource]]] = [
        partial(clusters, api),
        partial(_roles, api),
        partial(_templates, api),
        partial(_log_groups, api),
        partial(_load_balancers, api),
        partial(_by_controllers, api),
    ]
    return tuple(one for found in values(run_all(lambda read: read(), reads)) for one in found)


def clusters(api: Api) -> list[Resource]:
    """Kubernetes clusters, and all of their node groups."""
    listed = [name for name in whole(api, "eks", "list_clusters", "clusters") if names.tags_of_name(name)]
    found: list[Resource] = []
    for name in listed:
        try:
            cluster = api.call("describe_cluster", service="eks", name=name)["cluster"]
            groups = whole(api, "eks", "list_nodegroups", "nodegroups", clusterName=name)
        except Gone:
            continue  # removed since it was listed
        of = cluster.get("tags", {})
        # Somebody else may have a cluster of such a name: the tags decide.
        if of.get(tags.CLUSTER_ID) != names.tags_of_name(name)[tags.CLUSTER_ID]:
            continue
        vpc = cluster.get("resourcesVpcConfig", {}).get("vpcId")
        going = cluster["status"] == "DELETING"
        found.append(_resource(CLUSTER, name, of, network=vpc, going=going, ends_within_s=ENDS_WITHIN_S))
        found += [_node_group(api, name, group, of, vpc) for group in groups]
    return found


def _node_group(api: Api, cluster: str, group: str, of: Mapping[str, str], vpc: str | None) -> Resource:
    try:
        told = api.call("describe_nodegroup", service="eks", clusterName=cluster, nodegroupName=group)
        status = told["nodegroup"]["status"]
    except Gone:
        status = "DELETING"
    return _resource(
        NODE_GROUP,
        f"{cluster}/{group}",
        of,
        network=vpc,
        going=status == "DELETING",
        ends_within_s=ENDS_WITHIN_S,
    )


def _roles(api: Api) -> list[Resource]:
    """Those of this region's clusters; a role itself is in none."""
    found: list[Resource] = []
    for role in whole(api, "iam", "list_roles", "Roles", PathPrefix=names.ROLE_PATH):
        name = role["RoleName"]
        try:
            pairs = whole(api, "iam", "list_role_tags", "Tags", RoleName=name)
        except Gone:
            continue
        of = {pair["Key"]: pair["Value"] for pair in pairs}
        if tags.is_of(of, names.PROVIDER) and of.get(names.REGION) == api.region:
            found.append(_resource(ROLE, name, of))
    return found


def _templates(api: Api) -> list[Resource]:
    found = api.pages("describe_launch_templates", "LaunchTemplates", Filters=ours())
    named = [(item["LaunchTemplateId"], item["LaunchTemplateName"], tags_in(item)) for item in found]
    return [
        _resource(TEMPLATE, template, of, name=name)
        for template, name, of in named
        if tags.is_of(of, names.PROVIDER)
    ]


def _log_groups(api: Api) -> list[Resource]:
    """What EKS writes where somebody has switched the control plane's logs on."""
    prefix = f"{LOGS}gpuctl-"
    found = whole(api, "logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    named = {
        group["logGroupName"]: group["logGroupName"].removeprefix(LOGS).partition("/")[0] for group in found
    }
    return [
        _resource(LOG_GROUP, name, of)
        for name, cluster in named.items()
        if (of := names.tags_of_name(cluster))
    ]


def _load_balancers(api: Api) -> list[Resource]:
    """Those of Kubernetes' services."""
    new = {
        one["LoadBalancerArn"]: one.get("VpcId")
        for one in whole(api, "elbv2", "describe_load_balancers", "LoadBalancers")
    }
    classic = {
        one["LoadBalancerName"]: one.get("VPCId")
        for one in whole(api, "elb", "describe_load_balancers", "LoadBalancerDescriptions")
    }
    told = _described(api, "elbv2", "ResourceArns", "ResourceArn", list(new))
    told_classic = _described(api, "elb", "LoadBalancerNames", "LoadBalancerName", list(classic))
    return [
        *(_resource(LOAD_BALANCER, arn, of, network=new[arn]) for arn, of in told.items()),
        *(
            _resource(CLASSIC_LOAD_BALANCER, name, of, network=classic[name])
            for name, of in told_classic.items()
        ),
    ]


def _described(
    api: Api, service: str, asked: str, key: str, which: Sequence[str]
) -> dict[str, Mapping[str, str]]:
    """Load balancers of our clusters, with our tags of them."""
    found: dict[str, Mapping[str, str]] = {}
    for first in range(0, len(which), MOST_DESCRIBED):
        some: dict[str, Any] = {asked: list(which[first : first + MOST_DESCRIBED])}
        answer = api.call("describe_tags", service=service, **some)
        for entry in answer["TagDescriptions"]:
            if of := names.tags_by_controllers(tags_in(entry)):
                found[entry[key]] = of
    return found


def _by_controllers(api: Api) -> list[Resource]:
    """EC2's resources that AWS's controllers made: free network interfaces, volumes of claims, security groups."""
    free = filters(status="available")
    lists: tuple[tuple[str, str, str, str, list[Any]], ...] = (
        (
            "network-interface",
            "describe_network_interfaces",
            "NetworkInterfaces",
            "NetworkInterfaceId",
            [*filters(tag_key=names.INTERFACE_OF), *free],
        ),
        ("volume", "describe_volumes", "Volumes", "VolumeId", [*filters(tag_key=names.VOLUME_OF), *free]),
        (
            "security-group",
            "describe_security_groups",
            "SecurityGroups",
            "GroupId",
            filters(tag_key=(names.GROUP_OF, f"{names.OWNED_BY}gpuctl-*", names.BALANCED_FOR)),
        ),
    )
    return [
        _resource(kind, item[id_field], of, network=item.get("VpcId"))
        for kind, operation, key, id_field, which in lists
        for item in api.pages(operation, key, Filters=which)
        if (of := names.tags_by_controllers(tags_in(item)))
    ]


def _resource(
    kind: str,
    resource_id: str,
    of: Mapping[str, Any],
    *,
    name: str | None = None,
    network: str | None = None,
    going: bool = False,
    ends_within_s: float = 0.0,
) -> Resource:
    return Resource(
        kind=kind,
        id=resource_id,
        name=name or resource_id,
        tags=of,
        stage=STAGES[kind],
        network=network,
        going=going,
        ends_within_s=ends_within_s,
    )
