"""Sample objects as gpuctl applies them, written by hand, for tests of the test bed."""

import base64
from typing import Any

Document = dict[str, Any]
LABELS = {"gpuctl/cluster": "default", "gpuctl/cluster-id": "0a1b2c"}


def namespace(name: str) -> Document:
    """Return a cluster's namespace."""
    metadata = {"name": name, "labels": LABELS, "annotations": {"gpuctl/owner": "me@here"}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def secret(where: str) -> Document:
    """Return the Secret with the token of Ray's servers."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "ray-token", "namespace": where, "labels": LABELS},
        "data": {"auth_token": base64.b64encode(b"a-token-of-the-tests-of-ray-12345").decode()},
    }


def template(container: str, image: str, gpus: int) -> Document:
    """Return a pod template of Ray."""
    amounts: Document = {"cpu": "1", "memory": "4Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    return {
        "spec": {
            "containers": [
                {
                    "name": container,
                    "image": image,
                    "resources": {"limits": amounts, "requests": amounts},
                }
            ],
            **({"tolerations": [toleration]} if gpus else {}),
        }
    }


def ray_cluster(
    where: str, *, count: int = 2, gpus: int = 1, image: str = "rayproject/ray:2.60.0"
) -> Document:
    """Return a RayCluster with the machines as its workers."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "machines", "namespace": where, "labels": LABELS},
        "spec": {
            "rayVersion": "2.60.0",
            "authOptions": {"mode": "token", "secretName": "ray-token"},
            "headGroupSpec": {
                "serviceType": "ClusterIP",
                "rayStartParams": {"num-cpus": "0"},
                "template": template("ray-head", image, 0),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "gpu",
                    "replicas": count,
                    "minReplicas": count,
                    "maxReplicas": count,
                    "rayStartParams": {},
                    "template": template("ray-worker", image, gpus),
                }
            ],
        },
    }
