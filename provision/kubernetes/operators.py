"""What runs in a new Kubernetes cluster beside AWS's add-ons: NVIDIA's device plug-in, and KubeRay's operator."""

from collections.abc import Mapping
from typing import Any

from provision.clock import Clock
from provision.errors import Gone
from provision.kubernetes import kuberay
from provision.kubernetes.api import CRD, NAMESPACE, RAY_CLUSTER, Api, Kind
from provision.kubernetes.objects import GPU
from provision.provider import Say
from provision.wait import wait_until

PLUGIN = "nvidia-device-plugin-daemonset"
PLUGIN_NAMESPACE = "kube-system"
PLUGIN_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.17.4"
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
"""Where the server has each of the manifests' kinds."""


def install(api: Api, clock: Clock, say: Say, *, nodes: Mapping[str, str] | None) -> None:
    """Have both there and at work; nothing is sent where they are.

    `nodes`: labels of those with GPUs; None: the cloud has a device plug-in of its own. Raises CreateFailed at the
    deadline.
    """
    wanted = [*([] if nodes is None else [device_plugin(nodes)]), *kuberay.manifests()]
    if _image(api) != _image_of(wanted[-1]):
        say(f"KubeRay {kuberay.release().version} …")
        for document in wanted:
            api.apply(KINDS[document["kind"]], document)

    def look() -> tuple[bool | None, str]:
        found = api.get(DEPLOYMENT, kuberay.DEPLOYMENT, kuberay.NAMESPACE)
        available = (found or {}).get("status", {}).get("availableReplicas", 0)
        try:
            api.list(RAY_CLUSTER, kuberay.NAMESPACE)
        except Gone:
            return None, "the API server does not serve rayclusters yet"
        return (True if available else None), "no pod of it is available"

    wait_until("KubeRay's operator", look, timeout_s=READY_WITHIN_S, clock=clock, say=say)


def _image(api: Api) -> str | None:
    """The image of the operator that is there. It is applied last: then all else is there."""
    found = api.get(DEPLOYMENT, kuberay.DEPLOYMENT, kuberay.NAMESPACE)
    return None if found is None else _image_of(found)


def _image_of(deployment: dict[str, Any]) -> str:
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def device_plugin(nodes: Mapping[str, str]) -> dict[str, Any]:
    """The DaemonSet by which Kubernetes knows of GPUs, as NVIDIA publishes it, on the nodes with these labels."""
    labels = {"name": PLUGIN}
    folder = "/var/lib/kubelet/device-plugins"
    container = {
        "name": "nvidia-device-plugin-ctr",
        "image": PLUGIN_IMAGE,
        "env": [{"name": "FAIL_ON_INIT_ERROR", "value": "false"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "kubelet-device-plugins-dir", "mountPath": folder}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": PLUGIN, "namespace": PLUGIN_NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": dict(nodes),
                    "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
                    "priorityClassName": "system-node-critical",
                    "containers": [container],
                    "volumes": [{"name": "kubelet-device-plugins-dir", "hostPath": {"path": folder}}],
                },
            },
        },
    }
