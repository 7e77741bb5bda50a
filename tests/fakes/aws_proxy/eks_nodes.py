"""EKS's node groups: their machines are started from their launch templates, all by one scaling group each."""

from collections.abc import Iterator
from typing import Any

from tests.fakes.aws_proxy import eks as clusters
from tests.fakes.aws_proxy import images, instances, launch, lookup, room
from tests.fakes.aws_proxy.errors import ApiError
from tests.fakes.aws_proxy.instances import Instance
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.run import make_instance
from tests.fakes.aws_proxy.world import Thing, World, new_id, utc_now

Params = dict[str, Any]

GROUP = "node-group"
MIRRORED = (
    "amiType",
    "capacityType",
    "instanceTypes",
    "labels",
    "launchTemplate",
    "nodeRole",
    "subnets",
    "taints",
)
NAMED_AFTER_S = 5.0
"""EKS does not name a new group's scaling group at once."""
RETRY_S = 60.0
"""Time between two launches of a scaling group, after AWS refused the first."""
NAME_TAG = "eks:nodegroup-name"
AMI = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04)"


def group_of(world: World, region: str, cluster: str, name: str) -> Thing:
    """Return a node group. Raises ApiError if it does not exist."""
    clusters.cluster_of(world, region, cluster)
    for item in world.of(GROUP, region):
        if (item.body["clusterName"], item.body["nodegroupName"]) == (cluster, name):
            return item
    raise clusters.gone("node group", name)


def create(world: World, region: str, params: Params) -> Params:
    """CreateNodegroup."""
    cluster = clusters.cluster_of(world, region, params["clusterName"])
    if cluster.body["status"] != "ACTIVE":
        raise ApiError(
            "InvalidRequestException", f"Cluster '{params['clusterName']}' is not in ACTIVE status"
        )
    name = params["nodegroupName"]
    if any(
        (item.body["clusterName"], item.body["nodegroupName"]) == (params["clusterName"], name)
        for item in world.of(GROUP, region)
    ):
        raise clusters.in_use(f"NodeGroup already exists with name {name}")
    clusters.check_role(params["nodeRole"], "ec2.amazonaws.com")
    template = params["launchTemplate"]["id"]
    if template not in world.template_data:
        raise ApiError("InvalidRequestException", f"Launch template {template} is not there.")
    for subnet in params["subnets"]:
        lookup.subnet(world, region, subnet)
    scaling = params["scalingConfig"]
    if not scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]:
        raise ApiError("InvalidParameterException", "desired capacity is not between min and max size")
    scaling_group = f"eks-{name}-{new_id('')[-8:]}"
    thing = Thing(
        kind=GROUP,
        id=f"arn:aws:eks:{region}:{ACCOUNT}:nodegroup/{params['clusterName']}/{name}",
        region=region,
        tags=dict(params.get("tags", {})),
        body={key: params[key] for key in MIRRORED if key in params}
        | {
            "clusterName": params["clusterName"],
            "nodegroupName": name,
            "createdAt": utc_now().timestamp(),
            "scalingConfig": dict(scaling),
            "status": "CREATING",
            "health": {"issues": []},
            "resources": {"autoScalingGroups": [{"name": scaling_group}]},
            "_wanted": scaling["desiredSize"],
            "_leaving": set(),
            "_activities": [],
            "_named_at": world.control.now() + NAMED_AFTER_S,
        },
    )
    world.add(thing)
    _scale(world, thing)
    return {"nodegroup": _shown(world, thing)}


def _shown(world: World, thing: Thing) -> Params:
    body = {name: value for name, value in thing.body.items() if not name.startswith("_")}
    named = body["status"] != "CREATING" or world.control.now() >= thing.body["_named_at"]
    resources = body["resources"] if named else {}
    return body | {"resources": resources, "tags": dict(thing.tags)}


def machines_of(world: World, thing: Thing) -> Iterator[Instance]:
    """Return the machines of a node group that have not ended."""
    for item in world.of("instance", thing.region):
        if not item.gone and item.tags.get("aws:autoscaling:groupName") == scaling_group_of(thing):
            yield item


def stay_of(world: World, thing: Thing) -> list[Instance]:
    """Return the machines of a node group that are not ending."""
    return [
        item
        for item in machines_of(world, thing)
        if item.state in ("pending", "running") and item.id not in thing.body["_leaving"]
    ]


def drain(world: World, thing: Thing, machine: Instance) -> None:
    """Drain a machine, then end it. Until then it runs, and EKS shows the number of before."""
    thing.body["_leaving"].add(machine.id)

    def end() -> None:
        instances.terminate(world, machine)
        thing.body["scalingConfig"]["desiredSize"] = thing.body["_wanted"]

    world.after(world.extra.eks_drain_s, end)


def nodes_of(world: World, region: str, cluster: str) -> list[Instance]:
    """Return the running nodes of a cluster."""
    groups = [item for item in world.of(GROUP, region) if item.body["clusterName"] == cluster]
    return [item for group in groups for item in machines_of(world, group) if item.state == "running"]


def scaling_group_of(thing: Thing) -> str:
    """Return the name of a node group's scaling group."""
    return str(thing.body["resources"]["autoScalingGroups"][0]["name"])


def _scale(world: World, thing: Thing) -> None:
    """Start or end machines until the desired count is reached; record a refusal, and retry later."""
    if thing.body["status"] == "DELETING":
        return
    live = stay_of(world, thing)
    expected = thing.body["_wanted"]
    for item in live[: max(0, len(live) - expected)]:
        drain(world, thing, item)  # the oldest, as AWS does
    if len(live) < expected:
        try:
            _launch(world, thing, expected - len(live))
        except ApiError as refusal:
            market = "Spot" if thing.body.get("capacityType") == "SPOT" else "On-Demand"
            report = f"Could not launch {market} Instances. {refusal.code} - {refusal.message}"
            thing.body["_activities"].insert(0, (new_id("a"), report))
            thing.body["_refused"] = True
            world.after(RETRY_S, lambda: _try_again(world, thing))


def _try_again(world: World, thing: Thing) -> None:
    """Start missing machines; without any missing, look again later, as Auto Scaling does."""
    if not thing.body["_refused"] or thing.body["status"] == "DELETING":
        return
    if len(stay_of(world, thing)) < thing.body["_wanted"]:
        _scale(world, thing)
    else:
        world.after(RETRY_S, lambda: _try_again(world, thing))


def want(world: World, thing: Thing, count: int) -> None:
    """Set the desired count of the scaling group."""
    thing.body["_wanted"] = count
    _scale(world, thing)


def _launch(world: World, thing: Thing, count: int) -> None:
    region = thing.region
    data = world.template_data[thing.body["launchTemplate"]["id"]]
    subnet = thing.body["subnets"][0]
    cluster = clusters.cluster_of(world, region, thing.body["clusterName"])
    group = cluster.body["resourcesVpcConfig"]["clusterSecurityGroupId"]
    request = {
        "ImageId": images.image_id(region, images.of_region(region)[0]["Name"]),
        "InstanceType": thing.body["instanceTypes"][0],
        "MinCount": 1,
        "MaxCount": count,
        "BlockDeviceMappings": [],
        "TagSpecifications": _with_own_tags(thing, data.get("TagSpecifications", [])),
        "MetadataOptions": data.get("MetadataOptions", {}),
    }
    if data.get("NetworkInterfaces"):
        request["NetworkInterfaces"] = [item | {"SubnetId": subnet} for item in data["NetworkInterfaces"]]
    else:
        request |= {"SubnetId": subnet, "SecurityGroupIds": [group]}
    if data.get("Placement"):
        request["Placement"] = data["Placement"]
    if thing.body.get("capacityType") == "SPOT":
        request["InstanceMarketOptions"] = {"MarketType": "spot"}
    planned = launch.plan(world, region, request)
    thing.body["_refused"] = False
    for index in range(room.for_launch(world, region, planned)):
        instances.start(world, make_instance(world, region, request, planned, new_id("r"), index))


def _with_own_tags(thing: Thing, specifications: list[Params]) -> list[Params]:
    local = {
        "eks:cluster-name": thing.body["clusterName"],
        NAME_TAG: thing.body["nodegroupName"],
        "aws:autoscaling:groupName": scaling_group_of(thing),
        f"kubernetes.io/cluster/{thing.body['clusterName']}": "owned",
    }
    more = [{"Key": key, "Value": value} for key, value in local.items()]
    return [
        specification | {"Tags": [*specification["Tags"], *more]}
        if specification["ResourceType"] == "instance"
        else specification
        for specification in specifications
    ]


def _look(world: World, thing: Thing) -> None:
    """Update the group's status from its machines."""
    if thing.body["status"] == "UPDATING":
        if world.control.now() >= thing.body["_updated_at"]:
            thing.body["status"] = "ACTIVE"  # EKS waits for no machine then
    elif thing.body["status"] in ("ACTIVE", "DEGRADED"):
        if not thing.body.get("_refused"):
            _scale(world, thing)  # one that was lost is replaced
            thing.body |= {"status": "ACTIVE", "health": {"issues": []}}
        elif issues := [text for _, text in thing.body["_activities"][:1]]:
            issue = {"code": "AsgInstanceLaunchFailures", "message": issues[0], "resourceIds": []}
            thing.body |= {"status": "DEGRADED", "health": {"issues": [issue]}}
    elif thing.body["status"] == "CREATING":
        running = sum(item.state == "running" for item in machines_of(world, thing))
        if failure := world.extra.eks_group_failure:
            code, _, message = failure.partition(": ")
            issue = {"code": code, "message": message, "resourceIds": []}
            thing.body |= {"status": "CREATE_FAILED", "health": {"issues": [issue]}}
        elif running == thing.body["_wanted"]:
            thing.body["status"] = "ACTIVE"
    elif (
        thing.body["status"] == "DELETING"
        and not any(machines_of(world, thing))
        and world.control.now() >= thing.body["_gone_at"]
    ):
        world.things.pop(thing.id, None)


def describe(world: World, region: str, params: Params) -> Params:
    """DescribeNodegroup."""
    _look(world, group_of(world, region, params["clusterName"], params["nodegroupName"]))
    return {
        "nodegroup": _shown(world, group_of(world, region, params["clusterName"], params["nodegroupName"]))
    }


def list_groups(world: World, region: str, params: Params) -> Params:
    """ListNodegroups."""
    cluster = params["clusterName"]
    clusters.cluster_of(world, region, cluster)
    for item in world.of(GROUP, region):
        _look(world, item)
    result = [item for item in world.of(GROUP, region) if item.body["clusterName"] == cluster]
    return {"nodegroups": [item.body["nodegroupName"] for item in result]}


def update(world: World, region: str, params: Params) -> Params:
    """UpdateNodegroupConfig: how many machines."""
    thing = group_of(world, region, params["clusterName"], params["nodegroupName"])
    if thing.body["status"] != "ACTIVE":
        raise clusters.in_use("Nodegroup cannot be updated as it is currently not in Active State")
    thing.body["scalingConfig"] |= params.get("scalingConfig", {})
    thing.body["_wanted"] = thing.body["scalingConfig"]["desiredSize"]
    thing.body["status"] = "UPDATING"
    thing.body["_updated_at"] = world.control.now() + world.extra.eks_drain_s / 10
    _scale(world, thing)
    return {"update": {"id": new_id("u"), "status": "InProgress", "type": "ConfigUpdate"}}


def delete(world: World, region: str, params: Params) -> Params:
    """DeleteNodegroup."""
    thing = group_of(world, region, params["clusterName"], params["nodegroupName"])
    if thing.body["status"] == "DELETING":
        raise clusters.in_use("Nodegroup is being deleted")
    thing.body["status"] = "DELETING"
    thing.body["_gone_at"] = world.control.now() + world.extra.eks_gone_s
    for item in machines_of(world, thing):
        instances.terminate(world, item)
    return {"nodegroup": _shown(world, thing)}
