"""Derive the objects that KubeRay 1.7 makes of a RayCluster, as far as gpuctl uses it. Pure: documents in, documents
out.

Written after the operator's sources (controllers/ray/common/pod.go, service.go, utils/validation.go). A field that is
not implemented here is refused with AssertionError, and a spec that the operator refuses is refused here.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.kube.quantity import whole

Document = dict[str, Any]

GCS_PORT, METRICS_PORT, AGENT_PORT = 6379, 8080, 52365
PLAYED = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
PLAYED_OF_GROUPS = {
    "groupName",
    "replicas",
    "minReplicas",
    "maxReplicas",
    "numOfHosts",
    "priority",
    "rayStartParams",
    "scaleStrategy",
    "serviceType",
    "template",
}
RESOURCES_OF_START = ("num-cpus", "num-gpus", "memory", "resources")
OLDEST_WITH_TOKENS = (2, 52, 0)


def refusal(cluster: Document) -> str | None:
    """Return the reason for which the operator refuses a RayCluster, or `None`."""
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    if len(name) > 50 or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        return "RayCluster name should be a valid DNS1035 label of no more than 50 characters"
    head, workers = spec["headGroupSpec"], spec.get("workerGroupSpecs", [])
    for group in (head, *workers):
        choice, start = group.get("groupName", "Head"), group.get("rayStartParams") or {}
        if not group["template"]["spec"].get("containers"):
            return f"the group {choice} should have at least one container"
        if group.get("resources") and any(start.get(key) for key in RESOURCES_OF_START):
            return (
                f"resource fields should not be set in both rayStartParams and Resources for {choice} group"
            )
        if "labels" in start:
            return f"rayStartParams['labels'] is not supported for {choice} group"
    for group in workers:
        low, high = group.get("minReplicas"), group.get("maxReplicas")
        if low is None or high is None:
            return f"worker group {group['groupName']} must set both minReplicas and maxReplicas"
        if low < 0 or high < 0 or low > high:
            return f"worker group {group['groupName']} has minReplicas {low}, maxReplicas {high}"
    if (spec.get("authOptions") or {}).get("mode") == "token":
        version = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", spec.get("rayVersion", ""))
        if version is None or tuple(int(part) for part in version.groups()) < OLDEST_WITH_TOKENS:
            return "authOptions.mode is 'token' but minimum Ray version is 2.52.0"
    return None


def check_played(cluster: Document) -> None:
    """Raise AssertionError for a field that is not implemented here."""
    spec = cluster["spec"]
    assert spec.keys() <= PLAYED, f"not played here: {spec.keys() - PLAYED}"
    for group in (spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])):
        assert group.get("priority", 0) == 0, "not played here: priority"
        assert group.keys() <= PLAYED_OF_GROUPS, f"not played here: {group.keys() - PLAYED_OF_GROUPS}"


def auth_secret(cluster: Document, token: str) -> Document | None:
    """Return the Secret that the operator makes for a cluster with tokens and no named Secret, or `None`."""
    auth = cluster["spec"].get("authOptions") or {}
    if auth.get("mode") != "token" or auth.get("secretName"):
        return None
    metadata = _metadata(cluster, labels={"ray.io/cluster": cluster["metadata"]["name"]})
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata | {"name": secret_name(cluster)},
        "type": "Opaque",
        "stringData": {"auth_token": token},
    }


def secret_name(cluster: Document) -> str:
    """Return the name of the Secret with the token."""
    auth = cluster["spec"].get("authOptions") or {}
    return str(auth.get("secretName") or cluster["metadata"]["name"])


def head_address(cluster: Document) -> str:
    """Return the name of the head's service in the cluster's DNS."""
    metadata = cluster["metadata"]
    return f"{metadata['name']}-head-svc.{metadata['namespace']}.svc.cluster.local"


def head_service(cluster: Document) -> Document:
    """Return the service by which workers find the head; without an address of its own, as KubeRay makes it."""
    ports = {
        "client": 10001,
        "dashboard": 8265,
        "gcs-server": GCS_PORT,
        "metrics": METRICS_PORT,
        "serve": 8000,
    }
    name = cluster["metadata"]["name"]
    selector = {
        "ray.io/cluster": name,
        "ray.io/node-type": "head",
        "ray.io/identifier": f"{name}-head",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    kind = cluster["spec"]["headGroupSpec"].get("serviceType") or "ClusterIP"
    spec: Document = {
        "type": kind,
        "selector": selector,
        "ports": [
            {"name": port, "port": number, "appProtocol": "tcp", "protocol": "TCP", "targetPort": number}
            for port, number in ports.items()
        ],
    }
    if kind == "ClusterIP":
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    metadata = _metadata(cluster, labels=selector) | {"name": f"{name}-head-svc"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def head_pod(cluster: Document) -> Document:
    """Return the head's pod, with a `generateName` in place of a name."""
    return _pod(cluster, cluster["spec"]["headGroupSpec"], "head", "headgroup")


def worker_pod(cluster: Document, group: Document) -> Document:
    """Return a worker's pod of a group."""
    return _pod(cluster, group, "worker", group["groupName"])


def workers_wanted(group: Document) -> int:
    """Return the desired number of a group's pods."""
    replicas = group.get("replicas", group["minReplicas"])
    hosts: int = group.get("numOfHosts", 1)
    return max(group["minReplicas"], min(replicas, group["maxReplicas"])) * hosts


def _pod(cluster: Document, group: Document, kind: str, group_name: str) -> Document:
    name = cluster["metadata"]["name"]
    template = copy.deepcopy(group["template"])
    labels = {
        **(template.get("metadata", {}).get("labels") or {}),
        "ray.io/is-ray-node": "yes",
        "ray.io/cluster": name,
        "ray.io/node-type": kind,
        "ray.io/group": group_name,
        "ray.io/identifier": f"{name}-{kind}",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    metadata = _metadata(cluster, labels=labels)
    metadata["annotations"] = dict(template.get("metadata", {}).get("annotations") or {})
    prefix = f"{name}-head-" if kind == "head" else f"{name}-{group_name}-worker-"
    spec = template["spec"]
    ray = spec["containers"][0]
    start = _start_params(cluster, group, kind)
    auth = _token_env(cluster, ray)
    if kind == "worker":
        spec.setdefault("initContainers", []).append(_wait_for_gcs(cluster, ray, auth))
    ray["env"] = [*ray.get("env", []), *auth]
    for container in spec.get("initContainers", []):
        container.setdefault("env", []).extend(_address_env(cluster))
    ray["env"] += _environment(cluster, kind, start_command(kind, start), ray["env"])
    ray.setdefault("ports", []).append({"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"})
    _share_memory(spec, ray)
    local = " ".join((*ray.get("command", []), *ray.get("args", [])))
    generated = f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {start_command(kind, start)}"
    ray["command"] = ["/bin/bash", "-c", "--"]
    ray["args"] = [f"{local} && {generated}" if local else generated]
    ray.setdefault(
        "readinessProbe",
        {
            "httpGet": {"path": "/api/healthz", "port": AGENT_PORT},
            "initialDelaySeconds": 10,
            "periodSeconds": 5,
            "timeoutSeconds": 5 if kind == "head" else 2,
            "failureThreshold": 10,
        },
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"generateName": prefix},
        "spec": spec,
    }


def _metadata(cluster: Document, labels: Mapping[str, str]) -> Document:
    owner = {
        "apiVersion": cluster["apiVersion"],
        "kind": "RayCluster",
        "name": cluster["metadata"]["name"],
        "uid": cluster["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "namespace": cluster["metadata"]["namespace"],
        "labels": dict(labels),
        "ownerReferences": [owner],
    }


def _start_params(cluster: Document, group: Document, kind: str) -> dict[str, str]:
    """Return the options of `ray start`: the group's own, then the operator's additions."""
    params = dict(group.get("rayStartParams") or {})
    if kind == "worker":
        params.setdefault("address", f"{head_address(cluster)}:{GCS_PORT}")
    else:
        params.setdefault("dashboard-host", "0.0.0.0")
    params.setdefault("metrics-export-port", str(METRICS_PORT))
    params.setdefault("dashboard-agent-listen-port", str(AGENT_PORT))
    params["block"] = "true"
    resources = group["template"]["spec"]["containers"][0].get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    cpus = limits.get("cpu", requests.get("cpu"))
    if cpus is not None:
        params.setdefault("num-cpus", str(whole(cpus)))
    if "memory" in limits:
        params.setdefault("memory", str(whole(limits["memory"])))
    gpus = next((limits[key] for key in sorted(limits) if key.endswith("gpu")), None)
    if gpus is not None and whole(gpus):
        params.setdefault("num-gpus", str(whole(gpus)))
    return params


def start_command(kind: str, params: Mapping[str, str]) -> str:
    """Return the command that starts Ray in a pod."""
    words = [
        f"--{key}" if value == "true" else f"--{key}={value}"
        for key, value in sorted(params.items())
        if value != "false"
    ]
    return " ".join(("ray start", *(["--head"] if kind == "head" else []), *words))


def _token_env(cluster: Document, container: Document) -> list[Document]:
    auth = cluster["spec"].get("authOptions") or {}
    if auth.get("mode") != "token":
        return []
    secret = {"name": secret_name(cluster), "key": "auth_token"}
    made: list[Document] = [
        {"name": "RAY_AUTH_MODE", "value": "token"},
        {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": secret}},
    ]
    inputs = {item["name"] for item in container.get("env", [])}
    return [item for item in made if item["name"] not in inputs]


def _wait_for_gcs(cluster: Document, ray: Document, auth: Sequence[Document]) -> Document:
    """Return the init container that waits until the head answers."""
    address = f"{head_address(cluster)}:{GCS_PORT}"
    loop = f"until ray health-check --address {address} > /dev/null 2>&1; do sleep 1; done"
    amounts = {"cpu": "200m", "memory": "256Mi"}
    made = {
        "name": "wait-gcs-ready",
        "image": ray["image"],
        "command": ["/bin/bash", "-c", "--"],
        "args": [loop],
        "env": [*copy.deepcopy(ray.get("env", [])), *copy.deepcopy(list(auth))],
        "volumeMounts": copy.deepcopy(ray.get("volumeMounts", [])),
        "resources": {"limits": amounts, "requests": amounts},
    }
    return made | {key: ray[key] for key in ("imagePullPolicy", "securityContext") if key in ray}


def _address_env(cluster: Document) -> list[Document]:
    address = head_address(cluster)
    return [{"name": "FQ_RAY_IP", "value": address}, {"name": "RAY_IP", "value": address.split(".")[0]}]


def _environment(cluster: Document, kind: str, start: str, given: Sequence[Document]) -> list[Document]:
    def field(path: str) -> Document:
        return {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}

    address = head_address(cluster) if kind == "worker" else "127.0.0.1"
    named: dict[str, Document] = {
        "RAY_CLUSTER_NAME": field("metadata.labels['ray.io/cluster']"),
        "RAY_CLUSTER_NAMESPACE": field("metadata.namespace"),
        "RAY_CLOUD_INSTANCE_ID": field("metadata.name"),
        "RAY_NODE_TYPE_NAME": field("metadata.labels['ray.io/group']"),
        "KUBERAY_GEN_RAY_START_CMD": {"value": start},
        "RAY_PORT": {"value": str(GCS_PORT)},
        "RAY_ADDRESS": {"value": f"{address}:{GCS_PORT}"},
        "RAY_USAGE_STATS_KUBERAY_IN_USE": {"value": "1"},
        "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": {"value": "1"},
    }
    existing = {item["name"] for item in given}
    made = [{"name": name} | value for name, value in named.items() if name not in existing]
    return (_address_env(cluster) if kind == "worker" else []) + made


def _share_memory(spec: Document, ray: Document) -> None:
    """Mount memory at /dev/shm, unless the template does."""
    mounts = ray.setdefault("volumeMounts", [])
    if any(mount["mountPath"] == "/dev/shm" for mount in mounts):
        return
    volume: Document = {"name": "shared-mem", "emptyDir": {"medium": "Memory"}}
    resources = ray.get("resources") or {}
    for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
        if "memory" in amounts:
            volume["emptyDir"]["sizeLimit"] = amounts["memory"]
            break
    spec.setdefault("volumes", []).append(volume)
    mounts.append({"name": "shared-mem", "mountPath": "/dev/shm"})
