"""What would make `up` fail: permissions, KubeRay, nodes. Looks, and makes nothing."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from inventories.errors import InvalidInput
from provision.errors import CloudError, Denied, Gone
from provision.findings import Finding
from provision.kubernetes import objects
from provision.kubernetes.api import ACCESS_REVIEW, CRD, NODE, POD, QUOTA, RAY_CLUSTER, Api, Kind
from provision.kubernetes.capacity import NodeRoom, gpus_each, rooms, that_fit, with_room
from provision.kubernetes.images import full_name
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

    Pods in `namespace` take no room that are no machine yet, of an `up` that was cut off, or are on their way out.
    """
    try:
        found = api.list(NODE)
    except Denied:
        return None
    try:
        pods: list[dict[str, Any]] | None = [
            pod
            for pod in api.list(POD)
            if pod["metadata"]["namespace"] != namespace or _is_machine(pod["metadata"])
        ]
    except Denied:
        pods = None
    return rooms(found, pods)


def _is_machine(metadata: Mapping[str, Any]) -> bool:
    return objects.RANK in metadata.get("labels", {}) and "deletionTimestamp" not in metadata


def adds_nodes(api: Api) -> str:
    """Return what makes nodes as pods need them, as far as that can be seen; empty: nothing."""
    with suppress(Denied, Gone):
        if api.list(KARPENTER):
            return "Karpenter"
    with suppress(Denied):
        if api.get(CONFIG_MAP, AUTOSCALER_STATUS, "kube-system") is not None:
            return "the Cluster Autoscaler"
    return ""


def findings(
    api: Api, namespace: str, shape: str | None, count: int, *, image: str | None = None
) -> Sequence[Finding]:
    """Return what `doctor` shows of a context, for so many machines on nodes of the `shape` (None: any).

    `image`: of the pods. None: the default.
    """
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
        *_of_nodes(api, namespace, shape, count, image),
    )


def _of_nodes(
    api: Api, namespace: str, shape: str | None, count: int, image: str | None
) -> Sequence[Finding]:
    """Return what is to be said of nodes, their images, and how many GPUs the namespace may have."""
    found = nodes(api, namespace)
    if found is None:
        return (Finding(what="nodes", ok=None, detail="you may not list nodes"),)
    if not found:
        more = adds_nodes(api)
        none = Finding(
            what="nodes",
            ok=bool(more),
            detail="none is free of taints and ready" + (f"; {more} adds them" if more else ""),
            fix="" if more else "Add nodes to the cluster, or have an autoscaler add them.",
        )
        return (none,)
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
        return (Finding(what="nodes", ok=False, detail=detail, fix=str(error)),)
    fitting, ready = with_room(found, shape, each)
    room = fitting if ready is None else ready
    enough = room >= count or bool(adds_nodes(api))
    about = Finding(
        what="nodes",
        ok=enough,
        detail=detail if enough else f"{detail}; {room} of {count} that are asked for",
        fix="" if enough else "Ask for fewer, wait, or have the cluster's administrator add nodes.",
    )
    with_image = image_finding(image or objects.default_image(each), that_fit(found, shape, each))
    return (about, with_image, *_quota_findings(api, namespace, each * count))


def image_finding(image: str, fitting: Sequence[NodeRoom]) -> Finding:
    """Return whether the nodes have the image. Whether others get it, a pod tells. Pure."""
    try:
        name = full_name(image)
    except InvalidInput as error:
        return Finding(what="image", ok=False, detail=image, fix=str(error))
    have = sum(name in node.images for node in fitting)
    if fitting and have == len(fitting):
        return Finding(what="image", ok=True, detail=f"{image} is on all nodes that fit")
    on = f"on {have} of {len(fitting)} nodes that fit"
    told = "whether others may pull it, and how long that takes, `gpuctl up` tells"
    return Finding(what="image", ok=None, detail=f"{image} is {on}; {told}")


def _quota_findings(api: Api, namespace: str, gpus: int) -> Sequence[Finding]:
    """Return what the quotas of the cluster's namespace leave for so many GPUs; nothing where there are none."""
    try:
        quotas = api.list(QUOTA, namespace)
    except Denied:
        return ()
    return [found for one in quotas if (found := quota_finding(one, gpus)) is not None]


def quota_finding(quota: Mapping[str, Any], gpus: int) -> Finding | None:
    """Return what a quota leaves for so many GPUs; None: it says nothing of GPUs. Pure."""
    hard, used = ((quota.get("status") or {}).get(part) or {} for part in ("hard", "used"))
    limit = hard.get(f"requests.{objects.GPU}")
    if limit is None:
        return None
    taken = int(used.get(f"requests.{objects.GPU}", 0))
    ok = int(limit) >= gpus
    return Finding(
        what="quota",
        ok=ok,
        detail=f"{quota['metadata']['name']} allows {limit} GPUs, {taken} are used; {gpus} are asked for",
        fix="" if ok else "Ask for fewer, or have the cluster's administrator raise the quota.",
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
