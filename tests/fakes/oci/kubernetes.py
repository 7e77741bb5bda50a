"""Clusters of OKE and their node pools, whose machines are instances; load balancers and volumes of controllers.

A call that creates or deletes a cluster or a node pool returns only a work request: lists show the result.
"""

import base64
import itertools
from typing import Any

from tests.fakes.oci import works
from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.common import getter, given, in_compartment
from tests.fakes.oci.errors import ApiError, conflict, incorrect_state, invalid, not_found
from tests.fakes.oci.images import IMAGES
from tests.fakes.oci.instances import end_node, launch_node
from tests.fakes.oci.store import ENDED, Cloud, Resource

VERSIONS = ("v1.33.1", "v1.34.1", "v1.35.0")
"""The last one is a preview."""
_NAMES = (
    "Oracle-Linux-8.10-2026.08.31-0-OKE-1.34.1-1330",
    "Oracle-Linux-8.10-2026.09.30-0-OKE-1.34.1-1345",
    "Oracle-Linux-8.10-aarch64-2026.09.30-0-OKE-1.34.1-1345",
    "Oracle-Linux-8.10-Gen2-GPU-2026.09.30-0-OKE-1.34.1-1345",
    "Oracle-Linux-8.10-Gen2-GPU-2026.09.30-0-OKE-1.33.1-1345",
    "Oracle-Linux-8.10-2026.09.30-0-OKE-1.33.1-1345",
    "Oracle-Linux-8.10-2026.09.30-0-OKE-1.35.0-1345",
    "Oracle-Linux-8.10-Gen2-GPU-2026.09.30-0-OKE-1.35.0-1345",
    "Oracle-Linux-9.7-Gen2-GPU-2026.09.30-0-OKE-1.34.1-1346",
)
ADDONS = ("NvidiaGpuPlugin", "CoreDNS", "KubeProxy")


def _image() -> str:
    """Return the image that stands for all of OKE's."""
    return next(image.id for image in IMAGES.values() if image.name.startswith("Oracle-Linux-8-2026"))


def cluster_options(cloud: Cloud, request: Request) -> Reply:
    """GetClusterOptions."""
    return Reply(body={"kubernetesVersions": list(VERSIONS)})


def pool_options(cloud: Cloud, request: Request) -> Reply:
    """GetNodePoolOptions."""
    sources = [
        {"sourceType": "IMAGE", "sourceName": name, "imageId": f"ocid1.image.oc1..{name.lower()}"}
        for name in _NAMES
    ]
    return Reply(body={"kubernetesVersions": list(VERSIONS), "sources": sources})


def create_cluster(cloud: Cloud, request: Request) -> Reply:
    """CreateCluster: an enhanced cluster in a subnet with an address for its API server."""
    body = request.body
    in_compartment(cloud, body)
    if body["kubernetesVersion"] not in VERSIONS:
        raise invalid(f"kubernetesVersion is none that is offered: {body['kubernetesVersion']}")
    endpoint = body.get("endpointConfig") or {}
    subnet = cloud.get("subnet", endpoint.get("subnetId"))
    if subnet.view["vcnId"] != body["vcnId"]:
        raise invalid("endpointConfig.subnetId is not in the VCN")
    for group in endpoint.get("nsgIds") or ():
        cloud.get("networksecuritygroup", group)
    if endpoint.get("isPublicIpEnabled") and subnet.view.get("prohibitPublicIpOnVnic"):
        raise invalid("endpointConfig.isPublicIpEnabled: the subnet is private")
    cluster = cloud.add(
        "okecluster",
        {
            **given(body),
            "freeformTags": body.get("freeformTags") or {},
            "endpoints": {"publicEndpoint": f"{cloud.public_address()}:6443"},
        },
        state="CREATING",
    )
    cluster.view.pop("timeCreated")
    work = works.start(cloud, "CLUSTER_CREATE", cluster, "CREATED")

    def finish() -> None:
        if cluster.state == "CREATING":
            works.done(cloud, work)
            cloud.become(cluster, "ACTIVE")

    cloud.later(cloud.settings.oke_cluster_s, finish)
    return Reply(status=202, headers={"opc-work-request-id": work.id})


def list_clusters(cloud: Cloud, request: Request) -> Reply:
    """ListClusters: of a compartment."""
    return page(request, cloud.rows("okecluster"), size=cloud.settings.page_size)


def delete_cluster(cloud: Cloud, request: Request) -> Reply:
    """DeleteCluster: refused while it has node pools."""
    cluster = _live(cloud, "okecluster", request.target, "cluster")
    pools = list(cloud.where("nodepool", clusterId=cluster.id))
    if pools:
        raise conflict(f"The cluster {cluster.id} has node pools: {pools[0].id}")
    return _remove(cloud, cluster, "CLUSTER_DELETE", cloud.settings.oke_gone_s)


def create_pool(cloud: Cloud, request: Request) -> Reply:
    """CreateNodePool: its machines are launched once it is there."""
    body = request.body
    in_compartment(cloud, body)
    cluster = cloud.get("okecluster", body["clusterId"])
    if cluster.state != "ACTIVE":
        raise incorrect_state(f"The cluster {cluster.id} is in state {cluster.state}.")
    if body.get("kubernetesVersion") not in VERSIONS:
        raise invalid("kubernetesVersion is none that is offered")
    source = body["nodeSourceDetails"]
    if not any(source["imageId"] == f"ocid1.image.oc1..{name.lower()}" for name in _NAMES):
        raise invalid(f"nodeSourceDetails.imageId is no image of OKE's: {source['imageId']}")
    base64.b64decode((body.get("nodeMetadata") or {}).get("user_data", ""), validate=True)
    nodes = body["nodeConfigDetails"]
    for place in nodes["placementConfigs"]:
        cloud.get("subnet", place["subnetId"])
    if "computeClusterId" in nodes:
        cloud.get("computecluster", nodes["computeClusterId"])
    pool = cloud.add(
        "nodepool", {**given(body), "freeformTags": body.get("freeformTags") or {}}, state="CREATING"
    )
    pool.view.pop("timeCreated")
    pool.own |= {"nodes": [], "numbers": itertools.count()}
    work = works.start(cloud, "NODEPOOL_CREATE", pool, "CREATED")

    def finish() -> None:
        if pool.state == "CREATING":
            works.done(cloud, work)
            cloud.become(pool, "ACTIVE")
            _scale(cloud, pool)

    cloud.later(cloud.settings.oke_cluster_s / 10, finish)
    return Reply(status=202, headers={"opc-work-request-id": work.id})


def _scale(cloud: Cloud, pool: Resource) -> None:
    """Launch missing machines and end surplus ones; record the reason of a failed launch."""
    details = pool.view["nodeConfigDetails"]
    place = details["placementConfigs"][0]
    nodes = [
        node for node in pool.own["nodes"] if "instance" in node and node["instance"].state != "TERMINATED"
    ]
    stay = [node for node in nodes if node["instance"].live]
    for node in stay[: max(0, len(stay) - details["size"])]:
        end_node(cloud, node["instance"])
    pool.own["nodes"] = nodes
    for _ in range(details["size"] - len(stay)):
        name = f"oke-{pool.view['name']}-{next(pool.own['numbers'])}"
        node: dict[str, Any] = {"name": name}
        body = {
            "compartmentId": pool.view["compartmentId"],
            "availabilityDomain": place["availabilityDomain"],
            "displayName": name,
            "shape": pool.view["nodeShape"],
            "shapeConfig": pool.view.get("nodeShapeConfig"),
            "freeformTags": details.get("freeformTags") or {},
            "sourceDetails": {"sourceType": "image", "imageId": _image()},
            "createVnicDetails": {"subnetId": place["subnetId"], "nsgIds": details.get("nsgIds") or []},
            "computeClusterId": details.get("computeClusterId"),
            "preemptibleInstanceConfig": place.get("preemptibleNodeConfig"),
        }
        try:
            node["instance"] = launch_node(cloud, given(body))
        except ApiError as error:
            node["error"] = {"code": error.code, "message": error.message, "status": str(error.status)}
            if not cloud.settings.oke_tells_capacity:
                work = works.start(cloud, "NODEPOOL_RECONCILE", pool, "UPDATED")
                works.fail(cloud, work, error.code, error.message)
                cloud.become(pool, "UPDATING")
                continue
        pool.own["nodes"].append(node)


def show_pool(cloud: Cloud, request: Request) -> Reply:
    """GetNodePool, with its nodes in no particular order."""
    pool = cloud.get("nodepool", request.target)
    reply = shown(pool)
    return Reply(
        body={
            **pool.view,
            "nodes": [_node(pool, item) for item in pool.own["nodes"][::-1] if _is_listed(item)],
        },
        headers=reply.headers,
    )


def _is_listed(node: dict[str, Any]) -> bool:
    return "error" in node or node["instance"].state != "TERMINATED"


def _node(pool: Resource, node: dict[str, Any]) -> View:
    view: View = {"name": node["name"], "nodePoolId": pool.id}
    if "error" in node:
        return view | {"lifecycleState": "FAILING", "nodeError": node["error"]}
    instance: Resource = node["instance"]
    states = {
        "PROVISIONING": "CREATING",
        "RUNNING": "ACTIVE",
        "TERMINATING": "DELETING",
        "TERMINATED": "DELETED",
    }
    return view | {
        "id": instance.id,
        "privateIp": instance.own["vnic"].view["privateIp"],
        "lifecycleState": states.get(instance.state, "INACTIVE"),
    }


def list_pools(cloud: Cloud, request: Request) -> Reply:
    """ListNodePools: of a compartment, without their metadata and their nodes."""
    rows = [
        (number, {name: value for name, value in view.items() if name != "nodeMetadata"})
        for number, view in cloud.rows("nodepool")
    ]
    return page(request, rows, size=cloud.settings.page_size)


def update_pool(cloud: Cloud, request: Request) -> Reply:
    """UpdateNodePool: its number of machines. Which of them go is the cloud's choice: the oldest, here."""
    pool = _live(cloud, "nodepool", request.target, "node pool")
    expected = (request.body.get("nodeConfigDetails") or {}).get("size")
    assert expected is not None, "only the size is played"
    _refuse_while_changing(pool)
    cloud.change(pool, nodeConfigDetails={**pool.view["nodeConfigDetails"], "size": expected})
    if pool.state == "ACTIVE":
        _scale(cloud, pool)
    work = works.start(cloud, "NODEPOOL_UPDATE", pool, "UPDATED")
    works.done(cloud, work)
    return Reply(status=202, headers={"opc-work-request-id": work.id})


def delete_node(cloud: Cloud, request: Request) -> Reply:
    """DeleteNode: one machine, and the pool wants one less. Both show only after a while, in which it changes."""
    pool = _live(cloud, "nodepool", request.path["nodePoolId"], "node pool")
    assert request.query.get("isDecrementSize") == ["true"], "nothing else is played"
    _refuse_while_changing(pool)
    machines = [node["instance"] for node in pool.own["nodes"] if "instance" in node]
    machine = next((item for item in machines if item.id == request.path["nodeId"] and item.live), None)
    if machine is None:
        raise not_found()
    cloud.become(pool, "UPDATING")
    work = works.start(cloud, "NODEPOOL_UPDATE", pool, "UPDATED")

    def finish() -> None:
        if reason := cloud.settings.oke_end_failure:
            works.fail(cloud, work, "InternalError", reason)
            cloud.become(pool, "ACTIVE")
            return
        end_node(cloud, machine)
        if pool.state == "UPDATING":
            details = pool.view["nodeConfigDetails"]
            cloud.change(pool, nodeConfigDetails={**details, "size": details["size"] - 1})
            works.done(cloud, work)
            cloud.become(pool, "ACTIVE")

    cloud.later(cloud.settings.oke_cluster_s / 10, finish)
    return Reply(status=202, headers={"opc-work-request-id": work.id})


def _refuse_while_changing(pool: Resource) -> None:
    if pool.state == "UPDATING":
        raise conflict(f"The node pool {pool.id} is being updated.")


def delete_pool(cloud: Cloud, request: Request) -> Reply:
    """DeleteNodePool: ends its machines first."""
    pool = _live(cloud, "nodepool", request.target, "node pool")
    for node in pool.own["nodes"]:
        if "instance" in node:
            end_node(cloud, node["instance"])
    return _remove(cloud, pool, "NODEPOOL_DELETE", cloud.settings.oke_gone_s)


def _live(cloud: Cloud, kind: str, identifier: str, what: str) -> Resource:
    result = cloud.get(kind, identifier)
    if result.state in ENDED:
        raise not_found()
    if result.state == "DELETING":
        raise conflict(f"The {what} {identifier} is being deleted.")
    return result


def _remove(cloud: Cloud, resource: Resource, operation: str, after_s: float) -> Reply:
    cloud.become(resource, "DELETING")
    work = works.start(cloud, operation, resource, "DELETED")

    def finish() -> None:
        works.done(cloud, work)
        cloud.become(resource, "DELETED")

    cloud.later(after_s, finish)
    return Reply(status=202, headers={"opc-work-request-id": work.id})


def kubeconfig(cloud: Cloud, request: Request) -> Reply:
    """CreateKubeconfig: where the API server is; `oke_endpoint` of the settings stands for it."""
    cluster = _live(cloud, "okecluster", request.target, "cluster")
    if cluster.state == "CREATING":
        raise incorrect_state(f"The cluster {cluster.id} is in state CREATING.")
    url = cloud.settings.oke_endpoint or f"https://{cluster.view['endpoints']['publicEndpoint']}"
    text = f"apiVersion: v1\nkind: Config\nclusters:\n- name: cluster\n  cluster:\n    server: {url}\n"
    return Reply(body=text.encode())


def install_addon(cloud: Cloud, request: Request) -> Reply:
    """InstallAddon: once. The cluster is updated, and refuses node pools until then."""
    cluster = _live(cloud, "okecluster", request.target, "cluster")
    name = request.body["addonName"]
    if name not in ADDONS:
        raise invalid(f"There is no add-on {name}")
    if name in cluster.own.setdefault("addons", []):
        raise conflict(f"The add-on {name} is there already.")
    cluster.own["addons"].append(name)
    work = works.start(cloud, "ENABLE_ADDON", cluster, "UPDATED")
    cloud.become(cluster, "UPDATING")

    def finish() -> None:
        works.done(cloud, work)
        if cluster.state == "UPDATING":
            cloud.become(cluster, "ACTIVE")

    cloud.later(cloud.settings.oke_cluster_s / 10, finish)
    return Reply(status=202, headers={"opc-work-request-id": work.id})


def get_addon(cloud: Cloud, request: Request) -> Reply:
    """GetAddon."""
    cluster = cloud.get("okecluster", request.path["clusterId"])
    name = request.path["addonName"]
    if name not in cluster.own.get("addons", []):
        raise not_found()
    return Reply(body={"name": name, "lifecycleState": "ACTIVE"})


def list_works(cloud: Cloud, request: Request) -> Reply:
    """ListWorkRequests: of a resource."""
    about = request.one("resourceId")
    result = [
        (work.number, _work(work))
        for work in cloud.all("workrequest")
        if any(about == resource["identifier"] for resource in work.own["resources"])
    ]
    done = frozenset({"resourceId", "resourceType"})
    return page(request, result, size=cloud.settings.page_size, done=done)


def get_work(cloud: Cloud, request: Request) -> Reply:
    """GetWorkRequest."""
    work = cloud.get("workrequest", request.target)
    return Reply(body=_work(work), headers=shown(work).headers)


def _work(work: Resource) -> View:
    """Return the view of OKE's work requests, which report no progress."""
    report = {name: value for name, value in work.view.items() if name != "percentComplete"}
    return report | {"resources": work.own["resources"]}


def work_errors(cloud: Cloud, request: Request) -> Reply:
    """ListWorkRequestErrors, by a compartment and one of its work requests."""
    errors = cloud.get("workrequest", request.target).own["errors"]
    done = frozenset({"compartmentId"})
    return page(request, enumerate(errors), size=cloud.settings.page_size, done=done)


def _lister(kind: str) -> Handler:
    def list_all(cloud: Cloud, request: Request) -> Reply:
        return page(request, cloud.rows(kind), size=cloud.settings.page_size)

    return list_all


def _deleter(kind: str) -> Handler:
    def delete(cloud: Cloud, request: Request) -> Reply:
        cloud.fall(_live(cloud, kind, request.target, kind))
        return Reply(status=204)

    return delete


HANDLERS: dict[str, Handler] = {
    "GetClusterOptions": cluster_options,
    "GetNodePoolOptions": pool_options,
    "CreateCluster": create_cluster,
    "GetCluster": getter("okecluster"),
    "ListClusters": list_clusters,
    "DeleteCluster": delete_cluster,
    "CreateKubeconfig": kubeconfig,
    "InstallAddon": install_addon,
    "GetAddon": get_addon,
    "CreateNodePool": create_pool,
    "GetNodePool": show_pool,
    "ListNodePools": list_pools,
    "UpdateNodePool": update_pool,
    "DeleteNodePool": delete_pool,
    "DeleteNode": delete_node,
    "GetWorkRequest": get_work,
    "ListWorkRequests": list_works,
    "ListWorkRequestErrors": work_errors,
}
BALANCERS: dict[str, Handler] = {
    "ListLoadBalancers": _lister("loadbalancer"),
    "GetLoadBalancer": getter("loadbalancer"),
    "DeleteLoadBalancer": _deleter("loadbalancer"),
}
VOLUMES: dict[str, Handler] = {
    "ListVolumes": _lister("blockvolume"),
    "GetVolume": getter("blockvolume"),
    "DeleteVolume": _deleter("blockvolume"),
}
