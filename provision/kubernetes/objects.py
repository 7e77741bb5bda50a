"""The objects of a cluster: a namespace, a token, and a RayCluster whose workers are the machines. Pure."""

import base64
import sys
from collections.abc import Mapping
from typing import Any

from inventories.ray_in_pods import RAY_VERSION
from provision.kubernetes.record import KubernetesCluster

CLUSTER, CLUSTER_ID, RANK = "gpuctl/cluster", "gpuctl/cluster-id", "gpuctl/rank"
"""Labels. The last one is a worker pod's, once it is a machine."""
OWNER = "gpuctl/owner"
"""Annotation: who made it, user@host."""
RAY_CLUSTER_NAME, SECRET_NAME, GROUP = "machines", "ray-token", "gpu"
WORKERS = f"ray.io/cluster={RAY_CLUSTER_NAME},ray.io/node-type=worker"
"""Selects the pods that are machines."""
PODS = f"ray.io/cluster={RAY_CLUSTER_NAME}"
GPU = "nvidia.com/gpu"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
HOSTNAME = "kubernetes.io/hostname"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the container's own
NODE_FOLDERS = ("/home/ray/.gpuctl-node", "/root/.gpuctl-node")
"""Where gpuctl keeps environments, code and logs, in the home of the user of Ray's images or of root."""


def default_image(gpus: int) -> str:
    """Return Ray's public image, with the Python that runs here."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return f"rayproject/ray:{RAY_VERSION}-{python}-{'gpu' if gpus else 'cpu'}"


def namespace(cluster: KubernetesCluster) -> dict[str, Any]:
    """Return the namespace: all else is in it, and goes with it."""
    metadata = {
        "name": cluster.namespace,
        "labels": labels(cluster),
        "annotations": {OWNER: cluster.owner},
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def secret(cluster: KubernetesCluster, token: str) -> dict[str, Any]:
    """Return the secret with the token that Ray asks everybody for."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(cluster, SECRET_NAME),
        "type": "Opaque",
        "data": {"auth_token": base64.b64encode(token.encode()).decode()},
    }


def ray_cluster(cluster: KubernetesCluster, count: int) -> dict[str, Any]:
    """Return the RayCluster: a head that takes no work, and `count` workers, one a node."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(cluster, RAY_CLUSTER_NAME),
        "spec": {
            "rayVersion": RAY_VERSION,
            "authOptions": {"mode": "token", "secretName": SECRET_NAME},
            "headGroupSpec": {
                "serviceType": "ClusterIP",
                "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                "template": _template(cluster, _head(cluster)),
            },
            "workerGroupSpecs": [
                {
                    "groupName": GROUP,
                    "replicas": count,
                    "minReplicas": count,
                    "maxReplicas": count,
                    "rayStartParams": {"num-cpus": str(cluster.cpus)} if cluster.cpus else {},
                    "template": _template(cluster, _worker(cluster)),
                }
            ],
        },
    }


def labels(cluster: KubernetesCluster) -> dict[str, str]:
    """Return the labels of everything of a cluster."""
    return {CLUSTER: cluster.name, CLUSTER_ID: cluster.id}


def is_of(document: Mapping[str, Any], cluster: KubernetesCluster) -> bool:
    """Whether the object is this cluster's, whatever it is called."""
    return bool((document["metadata"].get("labels") or {}).get(CLUSTER_ID) == cluster.id)


def _metadata(cluster: KubernetesCluster, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": cluster.namespace, "labels": labels(cluster)}


def _template(cluster: KubernetesCluster, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": labels(cluster)}, "spec": spec}


def _head(cluster: KubernetesCluster) -> dict[str, Any]:
    return {
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "ray-head",
                "image": cluster.image,
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
            }
        ],
    }


def _worker(cluster: KubernetesCluster) -> dict[str, Any]:
    """One pod a node: it has the node's GPUs, and shared memory as large as the node's allows.

    A container that ends, as for want of memory, is started anew; what gpuctl has there outlives it.
    """
    gpus = {GPU: str(cluster.gpus)} if cluster.gpus else {}
    container = {
        "name": "ray-worker",
        "image": cluster.image,
        "resources": {
            "requests": {"cpu": "1", "memory": "2Gi", **gpus},
            **({"limits": gpus} if gpus else {}),
        },
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": SHARED_MEMORY},
            *({"name": "gpuctl", "mountPath": folder} for folder in NODE_FOLDERS),
        ],
    }
    apart = {
        "labelSelector": {"matchLabels": {CLUSTER_ID: cluster.id, "ray.io/node-type": "worker"}},
        "topologyKey": HOSTNAME,
    }
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [container],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {"name": "gpuctl", "emptyDir": {}},
        ],
    }
    if cluster.shape:
        spec["nodeSelector"] = {INSTANCE_TYPE: cluster.shape}
    if cluster.gpus:
        spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return spec
