"""EKS: clusters, node groups, add-ons and access entries. Interfaces, groups and machines are the fake's."""

import base64
from collections.abc import Callable
from typing import Any

from moto.iam.models import iam_backends

from tests.fakes.aws_proxy import eks_nodes, interfaces, lookup
from tests.fakes.aws_proxy.errors import ApiError
from tests.fakes.aws_proxy.interface_plan import InterfacePlan
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.run import fingerprint
from tests.fakes.aws_proxy.world import Thing, World, new_id, utc_now

Params = dict[str, Any]

CLUSTER, ADDON, ENTRY = "kubernetes-cluster", "add-on", "access-entry"


def answer(world: World, region: str, operation: str, params: Params) -> Params:
    """Answer a call. The same token and parameters get the earlier response, without a second action."""
    act = OPERATIONS.get(operation)
    if act is None:
        raise ApiError("InvalidRequestException", f"This fake has no {operation}.")
    token = params.get("clientRequestToken")
    if token is None:
        return act(world, region, params)
    key = (operation, region, token)
    mark = fingerprint({name: value for name, value in params.items() if name != "clientRequestToken"})
    if key in world.tokens:
        used_for, result = world.tokens[key]
        if used_for != mark:
            raise ApiError(
                "InvalidParameterException", "The client request token was used for another request."
            )
        return dict(result)
    result = act(world, region, params)
    world.tokens[key] = (mark, result)
    return result


def gone(what: str, name: str) -> ApiError:
    """Return the error for a missing resource."""
    return ApiError("ResourceNotFoundException", f"No {what} found for name: {name}.", 404)


def in_use(text: str) -> ApiError:
    """Return the error for a resource in use."""
    return ApiError("ResourceInUseException", text, 409)


def check_role(arn: str, trusted: str) -> None:
    """Raise ApiError for a missing role, or a role that the service may not assume."""
    for role in iam_backends[ACCOUNT]["aws"].roles.values():
        if role.arn == arn:
            if trusted not in str(role.assume_role_policy_document):
                raise ApiError("InvalidParameterException", f"The role {arn} does not trust {trusted}.")
            return
    raise ApiError("InvalidParameterException", f"The role {arn} can't be assumed.")


def cluster_of(world: World, region: str, name: str) -> Thing:
    """Return a cluster. Raises ApiError if it does not exist."""
    result = next((item for item in world.of(CLUSTER, region) if item.body["name"] == name), None)
    if result is None:
        raise gone("cluster", name)
    return result


def _create_cluster(world: World, region: str, params: Params) -> Params:
    name = params["name"]
    if any(item.body["name"] == name for item in world.of(CLUSTER, region)):
        raise in_use(f"Cluster already exists with name: {name}")
    check_role(params["roleArn"], "eks.amazonaws.com")
    network = params["resourcesVpcConfig"]
    subnets = [lookup.subnet(world, region, item) for item in network.get("subnetIds", [])]
    if len({item.availability_zone for item in subnets}) < 2:
        raise ApiError("InvalidParameterException", "Subnets specified must be in at least two different AZs")
    vpc = subnets[0].vpc_id
    if not world.moto.backend(region).vpcs[vpc].enable_dns_hostnames:
        raise ApiError("InvalidParameterException", f"The VPC {vpc} resolves no names of hosts.")
    for group in network.get("securityGroupIds", []):
        lookup.group(world, region, group)
    local = world.moto.ask(
        region,
        "CreateSecurityGroup",
        GroupName=f"eks-cluster-sg-{name}-{new_id('x')[-8:]}",
        Description="EKS created security group",
        VpcId=vpc,
    )["GroupId"]
    lookup.group(world, region, local).add_tags(
        {f"kubernetes.io/cluster/{name}": "owned", "aws:eks:cluster-name": name}
    )
    thing = Thing(
        kind=CLUSTER,
        id=f"arn:aws:eks:{region}:{ACCOUNT}:cluster/{name}",
        region=region,
        tags=dict(params.get("tags", {})),
        body={
            "name": name,
            "arn": f"arn:aws:eks:{region}:{ACCOUNT}:cluster/{name}",
            "createdAt": utc_now().timestamp(),
            "version": params.get("version", "1.34"),
            "roleArn": params["roleArn"],
            "resourcesVpcConfig": network | {"clusterSecurityGroupId": local, "vpcId": vpc},
            "accessConfig": params.get("accessConfig", {}),
            "upgradePolicy": params.get("upgradePolicy", {}),
            "status": "CREATING",
            "health": {"issues": []},
        },
    )
    world.add(thing)
    groups = [local, *network.get("securityGroupIds", [])]
    thing.body["_interfaces"] = [
        _interface(world, region, name, subnet, groups) for subnet in dict.fromkeys(network["subnetIds"])
    ]
    if params.get("accessConfig", {}).get("bootstrapClusterCreatorAdminPermissions", True):
        _add_entry(world, region, name, f"arn:aws:sts::{ACCOUNT}:user/moto", {})
    world.after(world.extra.eks_cluster_s, lambda: _cluster_works(world, thing))
    return {"cluster": _shown(thing)}


def _interface(world: World, region: str, name: str, subnet: str, groups: list[str]) -> str:
    """Create the control plane's interface in a subnet, and return its id."""
    planned = InterfacePlan(
        device=0,
        card=0,
        type="interface",
        subnet_id=subnet,
        vpc_id=lookup.subnet(world, region, subnet).vpc_id,
        group_ids=tuple(groups),
        public=False,
        dies_with_instance=False,
        address=None,
    )
    made = interfaces.make(world, region, planned, {}, address=None, text=f"Amazon EKS {name}")
    made.attachment = {"AttachmentId": new_id("eni-attach"), "DeviceIndex": 1, "Status": "attached"}
    return made.id


def _cluster_works(world: World, thing: Thing) -> None:
    if thing.body["status"] != "CREATING":
        return
    failure = world.extra.eks_cluster_failure
    if failure:
        code, _, message = failure.partition(": ")
        thing.body |= {"status": "FAILED", "health": {"issues": [{"code": code, "message": message}]}}
        return
    thing.body |= {
        "status": "ACTIVE",
        "endpoint": world.extra.eks_endpoint,
        "certificateAuthority": {"data": base64.b64encode(world.extra.eks_authority.encode()).decode()},
    }


def _shown(thing: Thing) -> Params:
    body = {name: value for name, value in thing.body.items() if not name.startswith("_")}
    return body | {"tags": dict(thing.tags)}


def _delete_cluster(world: World, region: str, params: Params) -> Params:
    thing = cluster_of(world, region, params["name"])
    if any(item.body["clusterName"] == params["name"] for item in world.of(eks_nodes.GROUP, region)):
        raise in_use("Cluster has nodegroups attached")
    if thing.body["status"] in ("CREATING", "DELETING"):
        raise in_use(f"Cluster {params['name']} has its {thing.body['status']} in progress")
    thing.body["status"] = "DELETING"
    world.after(world.extra.eks_gone_s, lambda: _cluster_gone(world, thing))
    return {"cluster": _shown(thing)}


def _cluster_gone(world: World, thing: Thing) -> None:
    name, region = thing.body["name"], thing.region
    for interface in thing.body["_interfaces"]:
        world.things.pop(interface, None)
    for item in [*world.of(ADDON, region), *world.of(ENTRY, region)]:
        if item.body["clusterName"] == name:
            del world.things[item.id]
    del world.things[thing.id]
    group = thing.body["resourcesVpcConfig"]["clusterSecurityGroupId"]
    # EKS leaves it where something else is still in it.
    held = any(group in str(item.body["Groups"]) for item in world.of("network-interface", region))
    if not held:
        world.moto.ask(region, "DeleteSecurityGroup", GroupId=group)


def _describe_cluster(world: World, region: str, params: Params) -> Params:
    return {"cluster": _shown(cluster_of(world, region, params["name"]))}


def _update_cluster(world: World, region: str, params: Params) -> Params:
    """Change the ranges that may reach a cluster.

    EKS refuses a second change during the first, and a change without effect.
    """
    thing = cluster_of(world, region, params["name"])
    if thing.body["status"] != "ACTIVE":
        raise in_use(f"Cluster {params['name']} has its {thing.body['status']} in progress")
    request = params["resourcesVpcConfig"]
    assert request.keys() == {"publicAccessCidrs"}, f"not played: {request}"
    if request["publicAccessCidrs"] == thing.body["resourcesVpcConfig"].get("publicAccessCidrs"):
        raise ApiError("InvalidParameterException", "Cluster is already at the desired configuration")
    thing.body["status"] = "UPDATING"

    def done() -> None:
        if thing.body["status"] == "UPDATING":
            thing.body |= {
                "status": "ACTIVE",
                "resourcesVpcConfig": thing.body["resourcesVpcConfig"] | request,
            }

    world.after(world.extra.eks_cluster_s / 4, done)
    return {"update": {"id": new_id("update"), "status": "InProgress", "type": "EndpointAccessUpdate"}}


def _list_clusters(world: World, region: str, params: Params) -> Params:
    return {"clusters": [item.body["name"] for item in world.of(CLUSTER, region) if world.visible(item)]}


def _named(world: World, region: str, kind: str, cluster: str, name: str) -> Thing:
    cluster_of(world, region, cluster)
    key = f"{cluster}/{name}"
    result = next((item for item in world.of(kind, region) if item.body["_key"] == key), None)
    if result is None:
        raise gone(kind, name)
    return result


def _create_addon(world: World, region: str, params: Params) -> Params:
    cluster, name = params["clusterName"], params["addonName"]
    if cluster_of(world, region, cluster).body["status"] != "ACTIVE":
        raise ApiError("InvalidRequestException", "Cluster is not active")
    if any(item.body["_key"] == f"{cluster}/{name}" for item in world.of(ADDON, region)):
        raise in_use("Addon already exists.")
    thing = Thing(
        kind=ADDON,
        id=f"{cluster}/add-on/{name}",
        region=region,
        tags=dict(params.get("tags", {})),
        body={
            "_key": f"{cluster}/{name}",
            "clusterName": cluster,
            "addonName": name,
            "addonVersion": "v1.0.0-eksbuild.1",
            "status": "CREATING",
        },
    )
    world.add(thing)
    return {"addon": _shown(thing)}


def _describe_addon(world: World, region: str, params: Params) -> Params:
    thing = _named(world, region, ADDON, params["clusterName"], params["addonName"])
    nodes = eks_nodes.nodes_of(world, region, params["clusterName"])
    # The DNS server is a pod, and needs a node.
    works = nodes or params["addonName"] != "coredns"
    thing.body["status"] = "ACTIVE" if works else "DEGRADED"
    return {"addon": _shown(thing)}


def _add_entry(world: World, region: str, cluster: str, principal: str, tags: dict[str, str]) -> Thing:
    thing = Thing(
        kind=ENTRY,
        id=f"{cluster}/access-entry/{principal}",
        region=region,
        tags=dict(tags),
        body={
            "_key": f"{cluster}/{principal}",
            "clusterName": cluster,
            "principalArn": principal,
            "type": "STANDARD",
            "_policies": [],
        },
    )
    world.add(thing)
    return thing


def _create_entry(world: World, region: str, params: Params) -> Params:
    cluster, principal = params["clusterName"], params["principalArn"]
    cluster_of(world, region, cluster)
    if any(item.body["_key"] == f"{cluster}/{principal}" for item in world.of(ENTRY, region)):
        raise in_use("The specified access entry resource is already in use on this cluster.")
    thing = _add_entry(world, region, cluster, principal, params.get("tags", {}))
    return {"accessEntry": _shown(thing)}


def _list_entries(world: World, region: str, params: Params) -> Params:
    cluster_of(world, region, params["clusterName"])
    result = [item for item in world.of(ENTRY, region) if item.body["clusterName"] == params["clusterName"]]
    return {"accessEntries": [item.body["principalArn"] for item in result]}


def _associate(world: World, region: str, params: Params) -> Params:
    thing = _named(world, region, ENTRY, params["clusterName"], params["principalArn"])
    report = {"policyArn": params["policyArn"], "accessScope": params["accessScope"]}
    thing.body["_policies"].append(report)
    return {"clusterName": params["clusterName"], "associatedAccessPolicy": report}


def _policies(world: World, region: str, params: Params) -> Params:
    thing = _named(world, region, ENTRY, params["clusterName"], params["principalArn"])
    return {"clusterName": params["clusterName"], "associatedAccessPolicies": thing.body["_policies"]}


OPERATIONS: dict[str, Callable[[World, str, Params], Params]] = {
    "AssociateAccessPolicy": _associate,
    "CreateAccessEntry": _create_entry,
    "CreateAddon": _create_addon,
    "CreateCluster": _create_cluster,
    "CreateNodegroup": eks_nodes.create,
    "DeleteCluster": _delete_cluster,
    "DeleteNodegroup": eks_nodes.delete,
    "DescribeAddon": _describe_addon,
    "DescribeCluster": _describe_cluster,
    "UpdateClusterConfig": _update_cluster,
    "DescribeNodegroup": eks_nodes.describe,
    "ListAccessEntries": _list_entries,
    "ListAssociatedAccessPolicies": _policies,
    "ListClusters": _list_clusters,
    "ListNodegroups": eks_nodes.list_groups,
    "UpdateNodegroupConfig": eks_nodes.update,
}
