"""Nodes that a cluster's pods can run on: instance types, GPUs, free GPUs. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inventories.errors import InvalidInput
from provision.kubernetes.ray_cluster import EFA, GPU, INSTANCE_TYPE

OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class NodeRoom:
    """A node that our pods may run on."""

    name: str
    shape: str | None
    """Its instance type. `None`: the node has no such label."""
    cpus: int
    """Whole CPUs that pods may have."""
    gpus: int
    free_gpus: int | None
    """`None`: the user may not list other namespaces' pods."""
    efa: int = 0
    """Interfaces of AWS's EFA that pods may have."""
    images: frozenset[str] = frozenset()
    """Names of the images that it has pulled, as far as it reports them."""


def rooms(
    nodes: Iterable[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]] | None
) -> tuple[NodeRoom, ...]:
    """Return the nodes that take our pods: ready, not cordoned, without taints but the GPUs'.

    `pods`: of all namespaces. `None`: the user may not list them.
    """
    used: Counter[str] = Counter()
    for pod in pods or ():
        if (name := pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in OVER:
            containers = pod["spec"]["containers"]
            used[name] += sum(_gpus(each.get("resources", {}).get("requests")) for each in containers)
    usable = []
    for node in nodes:
        spec = node.get("spec") or {}
        conditions = node.get("status", {}).get("conditions") or ()
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
        )
        foreign_taint = any(
            taint["key"] != GPU and taint["effect"] in ("NoSchedule", "NoExecute")
            for taint in spec.get("taints") or ()
        )
        if not (ready and not spec.get("unschedulable") and not foreign_taint):
            continue
        allocatable = node["status"].get("allocatable") or {}
        name, gpus = node["metadata"]["name"], _gpus(allocatable)
        images = node["status"].get("images") or ()
        usable.append(
            NodeRoom(
                name=name,
                shape=(node["metadata"].get("labels") or {}).get(INSTANCE_TYPE),
                cpus=whole_cpus(allocatable.get("cpu", "0")),
                gpus=gpus,
                free_gpus=None if pods is None else max(0, gpus - used[name]),
                efa=int(allocatable.get(EFA, 0)),
                images=frozenset(name for image in images for name in image.get("names") or ()),
            )
        )
    return tuple(usable)


def gpus_each(nodes: Sequence[NodeRoom], shape: str | None, *, of_shape: int | None) -> int:
    """Return the GPUs of one machine: all GPUs of a node.

    `of_shape`: GPUs of the shape in the catalog. `None`: not in the catalog. Raises InvalidInput for nodes with
    different numbers of GPUs, and for a shape that no node has and the catalog does not know.
    """
    if shape is not None:
        fitting = [node.gpus for node in nodes if node.shape == shape]
        if fitting and of_shape and not max(fitting):
            raise InvalidInput(
                f"The nodes of instance type {shape} have {of_shape} GPUs, and Kubernetes knows of none: NVIDIA's "
                "device plug-in is not at work there."
            )
        if fitting:
            return max(fitting)
        if of_shape is not None:
            return of_shape
        have = sorted({node.shape for node in nodes if node.shape})
        raise InvalidInput(
            f"No node of the cluster is of the instance type {shape}"
            + (f": it has {', '.join(have)}." if have else ".")
            + " Name one of those with --shape, or leave it out."
        )
    kinds = sorted({(node.gpus, node.shape or "?") for node in nodes if node.gpus})
    if len({gpus for gpus, _ in kinds}) > 1:
        listed = ", ".join(f"{name} ({gpus})" for gpus, name in kinds)
        raise InvalidInput(
            f"The cluster has nodes with different numbers of GPUs: {listed}. Say which with --shape."
        )
    return kinds[0][0] if kinds else 0


def cpus_each(nodes: Sequence[NodeRoom], shape: str | None, gpus: int) -> int:
    """Return the CPUs of one machine for Ray: of the smallest node that fits. 0: no node fits."""
    return min((node.cpus for node in that_fit(nodes, shape, gpus)), default=0)


def efa_each(nodes: Sequence[NodeRoom], shape: str | None, gpus: int) -> int:
    """Return the EFA interfaces of one machine: the lowest number of the nodes that fit."""
    return min((node.efa for node in that_fit(nodes, shape, gpus)), default=0)


def whole_cpus(quantity: str) -> int:
    """Return the whole CPUs of a quantity of Kubernetes, `3920m` or `8`."""
    return int(quantity[:-1]) // 1000 if quantity.endswith("m") else int(float(quantity))


def with_room(nodes: Sequence[NodeRoom], shape: str | None, gpus: int) -> tuple[int, int | None]:
    """Return the number of nodes that fit, and the number of them with all GPUs free (`None`: not known)."""
    fitting = that_fit(nodes, shape, gpus)
    if any(node.free_gpus is None for node in fitting) and gpus:
        return len(fitting), None
    return len(fitting), sum((node.free_gpus or 0) >= gpus for node in fitting)


def that_fit(nodes: Sequence[NodeRoom], shape: str | None, gpus: int) -> list[NodeRoom]:
    """Return the nodes on which a machine with that number of GPUs can be."""
    return [node for node in nodes if node.gpus >= gpus and shape in (None, node.shape)]


def _gpus(resources: Mapping[str, str] | None) -> int:
    return int((resources or {}).get(GPU, 0))
