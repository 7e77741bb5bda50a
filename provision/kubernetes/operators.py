"""Operators in a new Kubernetes cluster: device plug-ins, and KubeRay."""

from collections.abc import Mapping, Sequence
from typing import Any

from provision.errors import Gone
from provision.kubernetes import kuberay
from provision.kubernetes.api import CRD, NAMESPACE, RAY_CLUSTER, Api, Kind
from provision.kubernetes.ray_cluster import GPU
from provision.waiting import Clock, Say, Waiting

PLUGIN_NAMESPACE = "kube-system"
PLUGIN_FOLDER = "/var/lib/kubelet/device-plugins"
GPU_PLUGIN = "nvidia-device-plugin-daemonset"
GPU_PLUGIN_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.17.4"
EFA_PLUGIN = "aws-efa-k8s-device-plugin"
EFA_PLUGIN_IMAGE = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.19"
"""Image of AWS's chart (aws/eks-charts); the role of EKS's nodes may pull it in every region."""
READY_WITHIN_S = 600.0

DEPLOYMENT = Kind("apps/v1", "deployments")
DAEMON_SET = Kind("apps/v1", "daemonsets")
_RBAC = "rbac.authorization.k8s.io/v1"
KINDS = {
    "Namespace": NAMESPACE,
    "CustomResourceDefinition": CRD,
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "Role": Kind(_RBAC, "roles"),
    "ClusterRole": Kind(_RBAC, "clusterroles", namespaced=False),
    "RoleBinding": Kind(_RBAC, "rolebindings"),
    "ClusterRoleBinding": Kind(_RBAC, "clusterrolebindings", namespaced=False),
    "Service": Kind("v1", "services"),
    "Deployment": DEPLOYMENT,
    "DaemonSet": DAEMON_SET,
}
"""The manifests' kinds by name."""


def install(api: Api, clock: Clock, say: Say, plugins: Sequence[dict[str, Any]]) -> None:
    """Install KubeRay and the device plug-ins, unless they run, and wait for KubeRay.

    Raises CreateFailed at the deadline.
    """
    documents = [*plugins, *kuberay.manifests()]
    deployment = api.get(DEPLOYMENT, kuberay.DEPLOYMENT, kuberay.NAMESPACE)
    # The deployment is the last document: if its image is right, all others exist.
    if deployment is None or _image_of(deployment) != _image_of(documents[-1]):
        say(f"KubeRay {kuberay.release().version} …")
        for document in documents:
            api.apply(KINDS[document["kind"]], document)

    def operator_ready() -> tuple[bool | None, str]:
        deployment = api.get(DEPLOYMENT, kuberay.DEPLOYMENT, kuberay.NAMESPACE)
        available = (deployment or {}).get("status", {}).get("availableReplicas", 0)
        try:
            api.list(RAY_CLUSTER, kuberay.NAMESPACE)
        except Gone:
            return None, "the API server does not serve rayclusters yet"
        return (True if available else None), "no pod of it is available"

    Waiting(clock=clock, say=say).wait_until("KubeRay's operator", operator_ready, READY_WITHIN_S)


def _image_of(deployment: dict[str, Any]) -> str:
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def gpu_plugin(nodes: Mapping[str, str]) -> dict[str, Any]:
    """Return the DaemonSet that reports GPUs to Kubernetes, on the nodes with these labels.

    Its container ends while the driver is not ready yet, and is restarted.
    """
    container = {
        "name": "nvidia-device-plugin-ctr",
        "image": GPU_PLUGIN_IMAGE,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return _plugin(GPU_PLUGIN, nodes, container, {"kubelet-device-plugins-dir": PLUGIN_FOLDER})


def efa_plugin(nodes: Mapping[str, str]) -> dict[str, Any]:
    """Return the DaemonSet that reports EFA interfaces to Kubernetes, on the nodes with these labels."""
    container = {
        "name": EFA_PLUGIN,
        "image": EFA_PLUGIN_IMAGE,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": False,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
    }
    folders = {"device-plugin": PLUGIN_FOLDER, "infiniband-volume": "/dev/infiniband"}
    return _plugin(EFA_PLUGIN, nodes, container, folders, hostNetwork=True)


def _plugin(
    name: str,
    nodes: Mapping[str, str],
    container: Mapping[str, Any],
    folders: Mapping[str, str],
    **more: object,
) -> dict[str, Any]:
    """Return a DaemonSet on these nodes. `folders`: volume → path, the same on the node and in the container."""
    labels = {"name": name}
    mounts = [{"name": volume, "mountPath": path} for volume, path in folders.items()]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": PLUGIN_NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": dict(nodes),
                    "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
                    "priorityClassName": "system-node-critical",
                    "containers": [{**container, "volumeMounts": mounts}],
                    "volumes": [
                        {"name": volume, "hostPath": {"path": path}} for volume, path in folders.items()
                    ],
                    **more,
                },
            },
        },
    }
