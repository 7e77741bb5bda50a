"""What would make `up` fail: permissions, KubeRay, nodes. Looks, and makes nothing."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from inventories.errors import InvalidInput
from provision.cloud.records import Finding
from provision.errors import CloudError, Denied, Gone
from provision.kubernetes import objects
from provision.kubernetes.api import ACCESS_REVIEW, CRD, NODE, POD, RAY_CLUSTER, Api, Kind
from provision.kubernetes.capacity import NodeRoom, gpus_each, rooms, with_room
from provision.parallel import run_all, values
from provision.pricing.catalog import gpus_of

KUBERAY = "1.7"
CRD_NAME = "rayclusters.ray.io"
INSTALL = (
    "Its administrator installs it: `helm install kuberay-operator kuberay/kuberay-operator --version 1.7.0` "
    "(repository https://ray-project.github.io/kuberay-helm/)."
)
INSECURE = "; its certificate is not checked (insecure-skip-tls-verify)"
KARPENTER = Kind("karpenter.sh/v1", "nodepools", namespaced=False)
CONFIG_MAP = Kind("v1", "configmaps")
AUTOSCALER_STATUS = "cluster-autoscaler-status"
"""ConfigMap in which the Cluster Autoscaler says how it is."""
NEEDED: tuple[tuple[str, str, str], ...] = (
    ("get", "", "namespaces"),
    ("create", "", "namespaces"),
    ("patch", "", "namespaces"),
    ("delete", "", "namespaces"),
    ("create", "", "secrets"),
    ("patch", "", "secrets"),
    ("create", "networking.k8s.io", "networkpolicies"),
    ("patch", "networking.k8s.io", "networkpolicies"),
    ("get", "ray.io", "rayclusters"),
    ("create", "ray.io", "rayclusters"),
    ("patch", "ray.io", "rayclusters"),
    ("delete", "ray.io", "rayclusters"),
    ("get", "", "pods"),
    ("list", "", "pods"),
    ("patch", "", "pods"),
    ("get", "", "pods/exec"),
    ("create", "", "pods/exec"),
)
"""Verb, API group and resource. `exec` by WebSocket needs `get` on older servers, and `create` on newer ones."""


def missing_permissions(api: Api, namespace: str) -> str:
    """Return what the user may not do and `up` does: `create, patch namespaces; list pods`. Empty: nothing."""
    allowed = values(run_all(lambda one: _allowed(api, namespace, *one), NEEDED))
    missing: dict[str, list[str]] = {}
    for (verb, group, resource), yes in zip(NEEDED, allowed, strict=True):
        if not yes:
            missing.setdefault(f"{resource}.{group}" if group else resource, []).append(verb)
    return "; ".join(f"{', '.join(verbs)} {resource}" for resource, verbs in missing.items())


def kuberay_problem(api: Api) -> str | None:
    """Return what is wrong with the cluster's KubeRay; empty: nothing. None: the user may not look."""
    try:
        found = api.get(CRD, CRD_NAME)
    except Denied:
        return _without_schema(api)
    if found is None:
        return f"The cluster has no KubeRay {KUBERAY} (no CustomResourceDefinition {CRD_NAME}). {INSTALL}"
    return schema_problem(found)


def schema_problem(crd: dict[str, Any]) -> str:
    """Return why this CustomResourceDefinition is not of a KubeRay that can be used; empty: it is."""
    served = {one["name"]: one for one in crd["spec"]["versions"] if one.get("served")}
    schema = ((served.get("v1") or {}).get("schema") or {}).get("openAPIV3Schema") or {}
    fields = schema.get("properties", {}).get("spec", {}).get("properties", {})
    if "secretName" in fields.get("authOptions", {}).get("properties", {}):
        return ""
    what = "has no version v1" if "v1" not in served else "has no authOptions.secretName"
    return (
        f"The cluster's KubeRay is too old: {CRD_NAME} {what}, so Ray would be open to everybody in the cluster. "
        f"gpuctl needs KubeRay {KUBERAY}. {INSTALL}"
    )


def nodes(api: Api, namespace: str) -> tuple[NodeRoom, ...] | None:
    """Return the nodes that our pods may run on; None: the user may not list nodes.

    Pods in `namespace` that are no machine yet, of an `up` that was cut off, take no room: they are to become one.
    """
    try:
        found = api.list(NODE)
    except Denied:
        return None
    try:
        pods: list[dict[str, Any]] | None = [
            pod
            for pod in api.list(POD)
            if pod["metadata"]["namespace"] != namespace or objects.RANK in pod["metadata"].get("labels", {})
        ]
    except Denied:
        pods = None
    return rooms(found, pods)


def adds_nodes(api: Api) -> str:
    """Return what makes nodes as pods need them, as far as that can be seen; empty: nothing."""
    with suppress(Denied, Gone):
        if api.list(KARPENTER):
            return "Karpenter"
    with suppress(Denied):
        if api.get(CONFIG_MAP, AUTOSCALER_STATUS, "kube-system") is not None:
            return "the Cluster Autoscaler"
    return ""


def findings(api: Api, namespace: str, shape: str | None, count: int) -> Sequence[Finding]:
    """Return what `doctor` shows of a context, for so many machines on nodes of the `shape` (None: any)."""
    where = f"{api.server} (context {api.context})"
    try:
        missing = missing_permissions(api, namespace)
    except CloudError as error:
        return (
            Finding(
                what="kubernetes",
                ok=False,
                detail=f"{where}: {error}",
                fix="See to the context, or name another.",
            ),
        )
    problem = kuberay_problem(api)
    what, _, fix = (problem or "").partition(". ")
    if problem is None:
        what = "you may not look at its definitions"
    return (
        Finding(what="kubernetes", ok=True, detail=where + INSECURE * (not api.verified)),
        Finding(
            what="permissions",
            ok=not missing,
            detail=f"you may not {missing}" if missing else "all that gpuctl needs",
            fix="Have an administrator of the cluster allow it, by a ClusterRole." if missing else "",
        ),
        Finding(
            what="KubeRay",
            ok=None if problem is None else not problem,
            detail=what or f"{CRD_NAME} is there",
            fix=fix,
        ),
        _nodes_finding(api, namespace, shape, count),
    )


def _nodes_finding(api: Api, namespace: str, shape: str | None, count: int) -> Finding:
    found = nodes(api, namespace)
    if found is None:
        return Finding(what="nodes", ok=None, detail="you may not list nodes")
    if not found:
        more = adds_nodes(api)
        return Finding(
            what="nodes",
            ok=bool(more),
            detail="none is free of taints and ready" + (f"; {more} adds them" if more else ""),
            fix="" if more else "Add nodes to the cluster, or have an autoscaler add them.",
        )
    gpus = sum(node.gpus for node in found)
    free = (
        None if any(node.free_gpus is None for node in found) else sum(node.free_gpus or 0 for node in found)
    )
    detail = f"{len(found)} can be used, with {gpus} GPUs" + (
        f", {free} of them free" if free is not None and gpus else ""
    )
    try:
        each = gpus_each(found, shape, of_shape=gpus_of(shape) if shape else None)
    except InvalidInput as error:
        return Finding(what="nodes", ok=False, detail=detail, fix=str(error))
    fitting, ready = with_room(found, shape, each)
    room = fitting if ready is None else ready
    if room >= count or adds_nodes(api):
        return Finding(what="nodes", ok=True, detail=detail)
    return Finding(
        what="nodes",
        ok=False,
        detail=f"{detail}; {room} of {count} that are asked for",
        fix="Ask for fewer, wait, or have the cluster's administrator add nodes.",
    )


def _allowed(api: Api, namespace: str, verb: str, group: str, resource: str) -> bool:
    plural, _, part = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": plural}
    if part:
        asked["subresource"] = part
    if plural != "namespaces":
        asked["namespace"] = namespace
    answer = api.create(
        ACCESS_REVIEW,
        {
            "apiVersion": ACCESS_REVIEW.version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        },
    )
    return bool((answer.get("status") or {}).get("allowed"))


def _without_schema(api: Api) -> str | None:
    """As `kuberay_problem`, for a user who may not look at definitions."""
    try:
        api.list(RAY_CLUSTER, "default")
    except Gone:
        return f"The cluster has no KubeRay {KUBERAY} (no kind RayCluster). {INSTALL}"
    except Denied:
        pass
    return None
