"""Checks of `doctor` and `up`: permissions, KubeRay, nodes. Read-only."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from inventories.errors import InvalidInput
from inventories.threads import run_all, values
from provision.errors import CloudError, Denied, Gone
from provision.findings import Finding
from provision.kubernetes import ray_cluster
from provision.kubernetes.api import ACCESS_REVIEW, CRD, NODE, POD, QUOTA, RAY_CLUSTER, Api, Kind
from provision.kubernetes.capacity import NodeRoom, gpus_each, rooms, that_fit, with_room
from provision.kubernetes.images import full_name
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
"""ConfigMap with the Cluster Autoscaler's state."""
_NEEDED = {
    ("", "namespaces"): "get create patch delete",
    ("", "secrets"): "create patch",
    ("networking.k8s.io", "networkpolicies"): "create patch",
    ("ray.io", "rayclusters"): "get create patch delete",
    ("", "pods"): "get list patch",
    ("", "pods/exec"): "get create",
}
NEEDED = tuple((verb, *resource) for resource, verbs in _NEEDED.items() for verb in verbs.split())
"""Verb, API group and resource. `exec` by WebSocket needs `get` on older servers, and `create` on newer ones."""


def missing_permissions(api: Api, namespace: str) -> str:
    """Return the permissions that `up` needs and the user lacks: `create, patch namespaces; list pods`."""
    allowed = values(run_all(lambda permission: _allowed(api, namespace, *permission), NEEDED))
    missing: dict[str, list[str]] = {}
    for (verb, group, resource), yes in zip(NEEDED, allowed, strict=True):
        if not yes:
            missing.setdefault(f"{resource}.{group}" if group else resource, []).append(verb)
    return "; ".join(f"{', '.join(verbs)} {resource}" for resource, verbs in missing.items())


def kuberay_problem(api: Api) -> str | None:
    """Return the fault of the cluster's KubeRay. Empty: no fault. `None`: the user may not read definitions."""
    try:
        definition = api.get(CRD, CRD_NAME)
    except Denied:
        try:
            api.list(RAY_CLUSTER, "default")
        except Gone:
            return f"The cluster has no KubeRay {KUBERAY} (no kind RayCluster). {INSTALL}"
        except Denied:
            pass
        return None
    if definition is None:
        return f"The cluster has no KubeRay {KUBERAY} (no CustomResourceDefinition {CRD_NAME}). {INSTALL}"
    return schema_problem(definition)


def schema_problem(crd: dict[str, Any]) -> str:
    """Return the reason why this CustomResourceDefinition is of an unusable KubeRay. Empty: it is usable."""
    served = {version["name"]: version for version in crd["spec"]["versions"] if version.get("served")}
    schema = ((served.get("v1") or {}).get("schema") or {}).get("openAPIV3Schema") or {}
    fields = schema.get("properties", {}).get("spec", {}).get("properties", {})
    if "secretName" in fields.get("authOptions", {}).get("properties", {}):
        return ""
    lack = "has no version v1" if "v1" not in served else "has no authOptions.secretName"
    return (
        f"The cluster's KubeRay is too old: {CRD_NAME} {lack}, so Ray would be open to everybody in the cluster. "
        f"gpuctl needs KubeRay {KUBERAY}. {INSTALL}"
    )


def nodes(api: Api, namespace: str) -> tuple[NodeRoom, ...] | None:
    """Return the nodes that our pods may run on. `None`: the user may not list nodes.

    Pods in `namespace` that are no machine take no room: an interrupted `up` left them, or they are being deleted.
    """
    try:
        listed = api.list(NODE)
    except Denied:
        return None

    def takes_room(metadata: Mapping[str, Any]) -> bool:
        is_machine = ray_cluster.RANK in metadata.get("labels", {}) and "deletionTimestamp" not in metadata
        return metadata["namespace"] != namespace or is_machine

    try:
        pods: list[dict[str, Any]] | None = [pod for pod in api.list(POD) if takes_room(pod["metadata"])]
    except Denied:
        pods = None
    return rooms(listed, pods)


def adds_nodes(api: Api) -> str:
    """Return the name of the program that adds nodes for pods, as far as it can be seen. Empty: no such program."""
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
    """Return the findings of `doctor` on a context, for `count` machines on nodes of the `shape` (`None`: any).

    `image`: of the pods. `None`: the default.
    """
    server = f"{api.server} (context {api.context})"
    try:
        missing = missing_permissions(api, namespace)
    except CloudError as error:
        return (
            Finding(
                what="kubernetes",
                ok=False,
                detail=f"{server}: {error}",
                fix="See to the context, or name another.",
            ),
        )
    problem = kuberay_problem(api)
    detail, _, fix = (problem or "").partition(". ")
    if problem is None:
        detail = "you may not look at its definitions"
    return (
        Finding(what="kubernetes", ok=True, detail=server + INSECURE * (not api.verified)),
        Finding(
            what="permissions",
            ok=not missing,
            detail=f"you may not {missing}" if missing else "all that gpuctl needs",
            fix="Have an administrator of the cluster allow it, by a ClusterRole." if missing else "",
        ),
        Finding(
            what="KubeRay",
            ok=None if problem is None else not problem,
            detail=detail or f"{CRD_NAME} is there",
            fix=fix,
        ),
        *_node_findings(api, namespace, shape, count, image),
    )


def _node_findings(
    api: Api, namespace: str, shape: str | None, count: int, image: str | None
) -> Sequence[Finding]:
    """Return the findings on nodes, their images, and the namespace's quota of GPUs."""
    usable = nodes(api, namespace)
    if usable is None:
        return (Finding(what="nodes", ok=None, detail="you may not list nodes"),)
    if not usable:
        autoscaler = adds_nodes(api)
        detail = "none is free of taints and ready" + (f"; {autoscaler} adds them" if autoscaler else "")
        fix = "" if autoscaler else "Add nodes to the cluster, or have an autoscaler add them."
        return (Finding(what="nodes", ok=bool(autoscaler), detail=detail, fix=fix),)
    gpus = sum(node.gpus for node in usable)
    known = all(node.free_gpus is not None for node in usable)
    detail = f"{len(usable)} can be used, with {gpus} GPUs"
    if known and gpus:
        detail += f", {sum(node.free_gpus or 0 for node in usable)} of them free"
    try:
        each = gpus_each(usable, shape, of_shape=gpus_of(shape) if shape else None)
    except InvalidInput as error:
        return (Finding(what="nodes", ok=False, detail=detail, fix=str(error)),)
    fitting, ready = with_room(usable, shape, each)
    room = fitting if ready is None else ready
    enough = room >= count or bool(adds_nodes(api))
    about = Finding(
        what="nodes",
        ok=enough,
        detail=detail if enough else f"{detail}; {room} of {count} that are asked for",
        fix="" if enough else "Ask for fewer, wait, or have the cluster's administrator add nodes.",
    )
    with_image = image_finding(image or ray_cluster.default_image(each), that_fit(usable, shape, each))
    try:
        quotas = [quota_finding(quota, each * count) for quota in api.list(QUOTA, namespace)]
    except Denied:
        quotas = []
    return (about, with_image, *filter(None, quotas))


def image_finding(image: str, fitting: Sequence[NodeRoom]) -> Finding:
    """Return the finding on the image: whether the nodes have pulled it. Only a pod shows whether they can. Pure."""
    try:
        name = full_name(image)
    except InvalidInput as error:
        return Finding(what="image", ok=False, detail=image, fix=str(error))
    have = sum(name in node.images for node in fitting)
    if fitting and have == len(fitting):
        return Finding(what="image", ok=True, detail=f"{image} is on all nodes that fit")
    detail = f"{image} is on {have} of {len(fitting)} nodes that fit; whether others may pull it, and how long that"
    return Finding(what="image", ok=None, detail=f"{detail} takes, `gpuctl up` tells")


def quota_finding(quota: Mapping[str, Any], gpus: int) -> Finding | None:
    """Return the finding on a quota for that number of GPUs. `None`: the quota does not limit GPUs. Pure."""
    hard, used = ((quota.get("status") or {}).get(part) or {} for part in ("hard", "used"))
    limit = hard.get(f"requests.{ray_cluster.GPU}")
    if limit is None:
        return None
    requested = int(used.get(f"requests.{ray_cluster.GPU}", 0))
    ok = int(limit) >= gpus
    return Finding(
        what="quota",
        ok=ok,
        detail=f"{quota['metadata']['name']} allows {limit} GPUs, {requested} are used; {gpus} are asked for",
        fix="" if ok else "Ask for fewer, or have the cluster's administrator raise the quota.",
    )


def _allowed(api: Api, namespace: str, verb: str, group: str, resource: str) -> bool:
    plural, _, part = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural}
    if part:
        attributes["subresource"] = part
    if plural != "namespaces":
        attributes["namespace"] = namespace
    answer = api.create(
        ACCESS_REVIEW,
        {
            "apiVersion": ACCESS_REVIEW.version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        },
    )
    return bool((answer.get("status") or {}).get("allowed"))
