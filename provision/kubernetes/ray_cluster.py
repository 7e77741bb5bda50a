"""The objects of a cluster: a namespace, a token, and a RayCluster whose workers are the machines. Pure."""

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from inventories import codec
from inventories.ray_in_pods import RAY_VERSION
from provision.kubernetes.images import full_name
from provision.kubernetes.record import KubernetesCluster

CLUSTER, CLUSTER_ID, RANK = "gpuctl/cluster", "gpuctl/cluster-id", "gpuctl/rank"
"""Labels. The rank is the label of a worker pod that is a machine."""
OWNER = "gpuctl/owner"
"""Annotation with the maker, user@host."""
RECORD = "gpuctl/record"
"""Annotation of the namespace with the cluster's record, for other computers."""
RAY_CLUSTER_NAME, SECRET_NAME, POLICY_NAME, GROUP = "machines", "ray-token", "own-pods-only", "gpu"
WORKERS = f"ray.io/cluster={RAY_CLUSTER_NAME},ray.io/node-type=worker"
"""Selects the pods that are machines."""
PODS = f"ray.io/cluster={RAY_CLUSTER_NAME}"
GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
HOSTNAME = "kubernetes.io/hostname"
GROUP_LABEL = "gpuctl/group"
"""Label of nodes that gpuctl made: `cpu` or `gpu`."""
UNDISTURBED = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations that keep autoscalers from moving a pod to another node in the middle of a run."""
NO_HUGE_PAGES = {"name": "FI_EFA_USE_HUGE_PAGE", "value": "0"}
"""Variable of libfabric: the pods request no huge pages, and a container that uses some is killed."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the container's own
NODE_FOLDERS = ("/home/ray/.gpuctl-node", "/root/.gpuctl-node")
"""Folders of environments, code and logs, in the home of the user of Ray's images or of root."""


def default_image(gpus: int) -> str:
    """Return Ray's public image with the Python version of this computer."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return f"rayproject/ray:{RAY_VERSION}-{python}-{'gpu' if gpus else 'cpu'}"


def namespace(cluster: KubernetesCluster) -> dict[str, Any]:
    """Return the namespace, which has all other objects and is deleted with them."""
    metadata = {
        "name": cluster.namespace,
        "labels": labels(cluster),
        "annotations": {OWNER: cluster.owner, RECORD: json.dumps(codec.to_json(cluster))},
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def secret(cluster: KubernetesCluster, token: str) -> dict[str, Any]:
    """Return the secret with Ray's token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(cluster, SECRET_NAME),
        "type": "Opaque",
        "data": {"auth_token": base64.b64encode(token.encode()).decode()},
    }


def network_policy(cluster: KubernetesCluster) -> dict[str, Any]:
    """Return the policy that admits only the cluster's own pods: Ray and ranks listen on all ports."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(cluster, POLICY_NAME),
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {}}]}],
        },
    }


def ray_cluster(cluster: KubernetesCluster, count: int, *, delete: Sequence[str] = ()) -> dict[str, Any]:
    """Return the RayCluster: a head without work, and `count` workers, one a node.

    `delete`: names of the worker pods to delete.
    """
    strategy = {"scaleStrategy": {"workersToDelete": list(delete)}} if delete else {}
    head, worker = _template(cluster, _head(cluster)), _template(cluster, _worker(cluster))
    group = {"maxReplicas": max(count, 1), **strategy}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(cluster, RAY_CLUSTER_NAME),
        "spec": cluster_spec(head, worker, count, cluster.cpus, {"secretName": SECRET_NAME}, group),
    }


def cluster_spec(
    head: dict[str, Any],
    worker: dict[str, Any],
    count: int,
    cpus: int,
    auth: Mapping[str, str] | None = None,
    group: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the spec of a RayCluster by the templates of its pods: `count` workers of `cpus` CPUs each.

    0 CPUs: KubeRay takes the pod's request. `auth` and `group`: further fields of the token's and the workers' part.
    """
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token", **(auth or {})},
        "headGroupSpec": {
            "serviceType": "ClusterIP",
            "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
            "template": head,
        },
        "workerGroupSpecs": [
            {
                "groupName": GROUP,
                "replicas": count,
                "minReplicas": count,
                "maxReplicas": count,
                "rayStartParams": {"num-cpus": str(cpus)} if cpus else {},
                "template": worker,
                **(group or {}),
            }
        ],
    }


def labels(cluster: KubernetesCluster) -> dict[str, str]:
    """Return the labels of everything of a cluster."""
    return {CLUSTER: cluster.name, CLUSTER_ID: cluster.id}


def is_of(document: Mapping[str, Any], cluster: KubernetesCluster) -> bool:
    """Return whether the object belongs to this cluster, whatever its name."""
    return bool((document["metadata"].get("labels") or {}).get(CLUSTER_ID) == cluster.id)


def _metadata(cluster: KubernetesCluster, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": cluster.namespace, "labels": labels(cluster)}


def _template(cluster: KubernetesCluster, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": labels(cluster), "annotations": UNDISTURBED}, "spec": spec}


def _head(cluster: KubernetesCluster) -> dict[str, Any]:
    """Return the head's pod: without GPUs, on another node than the workers if possible."""
    worker = {"labelSelector": {"matchLabels": {"ray.io/node-type": "worker"}}, "topologyKey": HOSTNAME}
    preferred = {"weight": 50, "podAffinityTerm": worker}
    small = {"matchExpressions": [{"key": GROUP_LABEL, "operator": "In", "values": ["cpu"]}]}
    return {
        "automountServiceAccountToken": False,
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": small}]
            },
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]},
        },
        **_tolerations(cluster),
        "containers": [
            {
                "name": "ray-head",
                "image": full_name(cluster.image),
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
            }
        ],
    }


def _worker(cluster: KubernetesCluster) -> dict[str, Any]:
    """Return a worker's pod: one a node, with the node's GPUs, and shared memory up to the node's limit.

    Kubernetes restarts a container that ends, as for want of memory; gpuctl's files there outlive it.
    """
    devices = {kind: str(count) for kind, count in ((GPU, cluster.gpus), (EFA, cluster.efa)) if count}
    container = {
        "name": "ray-worker",
        "image": full_name(cluster.image),
        **({"env": [NO_HUGE_PAGES]} if cluster.efa else {}),
    }
    alone = {CLUSTER_ID: cluster.id, "ray.io/node-type": "worker"}
    spec = whole_node_pod(container, devices, alone, cluster.shape, folders=NODE_FOLDERS)
    return {"automountServiceAccountToken": False, **spec, **_tolerations(cluster)}


def whole_node_pod(
    container: Mapping[str, Any],
    devices: Mapping[str, str],
    labels: Mapping[str, str],
    shape: str | None,
    *,
    folders: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the spec of a pod with these devices and shared memory, on another node than pods with these labels.

    `shape`: instance type of the node, `None` for any. `folders`: outlive the container, in one volume.
    """
    resources: dict[str, Any] = {"requests": {"cpu": "1", "memory": "2Gi", **devices}}
    if devices:
        resources["limits"] = dict(devices)
    apart = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": HOSTNAME}
    mounts = [
        {"name": "shared-memory", "mountPath": SHARED_MEMORY},
        *({"name": "gpuctl", "mountPath": folder} for folder in folders),
    ]
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if folders:
        volumes.append({"name": "gpuctl", "emptyDir": {}})
    spec: dict[str, Any] = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [{**container, "resources": resources, "volumeMounts": mounts}],
        "volumes": volumes,
    }
    if shape:
        spec["nodeSelector"] = {INSTANCE_TYPE: shape}
    return spec


def _tolerations(cluster: KubernetesCluster) -> dict[str, Any]:
    """Return the tolerations for nodes with GPUs, which may be the only nodes."""
    keys = (GPU, *cluster.tainted) if cluster.gpus else cluster.tainted
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return {"tolerations": tolerated} if tolerated else {}
