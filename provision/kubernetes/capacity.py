"""Which nodes a cluster's pods can run on: instance types, GPUs, and how many of them are free. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inventories.errors import InvalidInput
from provision.kubernetes.objects import EFA, GPU, INSTANCE_TYPE

OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class NodeRoom:
    """A node that our pods may run on."""

    name: str
    shape: str | None
    """Its instance type. None: it has no such label."""
    cpus: int
    """Whole ones that pods may have."""
    gpus: int
    free_gpus: int | None
    """None: the pods of others can't be listed."""
    efa: int = 0
    """Interfaces of AWS's EFA that pods may have."""
    images: frozenset[str] = frozenset()
    """Names of those that it has pulled, as far as it tells."""


def rooms(
    nodes: Iterable[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]] | None
) -> tuple[NodeRoom, ...]:
    """Return the nodes that take our pods: ready, not cordoned, without taints but the GPUs'.

    `pods`: of all namespaces; None: they can't be listed.
    """
    taken: Counter[str] = Counter()
    for pod in pods or ():
        if (node := pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in OVER:
            taken[node] += sum(
                _gpus(one.get("resources", {}).get("requests")) for one in pod["spec"]["containers"]
            )
    found = []
    for node in nodes:
        if not _usable(node):
            continue
        allocatable = node["status"].get("allocatable") or {}
        name, gpus, cpus = (
            node["metadata"]["name"],
            _gpus(allocatable),
            whole_cpus(allocatable.get("cpu", "0")),
        )
        free = None if pods is None else max(0, gpus - taken[name])
        shape = (node["metadata"].get("labels") or {}).get(INSTANCE_TYPE)
        efa = int(allocatable.get(EFA, 0))
        images = frozenset(
            text for one in node["status"].get("images") or () for text in one.get("names") or ()
        )
        found.append(
            NodeRoom(name=name, shape=shape, cpus=cpus, gpus=gpus, free_gpus=free, efa=efa, images=images)
        )
    return tuple(found)


def gpus_each(found: Sequence[NodeRoom], shape: str | None, *, of_shape: int | None) -> int:
    """Return the GPUs of one machine: all that a node has.

    `of_shape`: those of the shape as the catalog has it; None: it is not in there. Raises InvalidInput where the
    nodes leave it open, or none is of that shape and nobody knows its GPUs.
    """
    if shape is not None:
        fitting = [node.gpus for node in found if node.shape == shape]
        if fitting and of_shape and not max(fitting):
            raise InvalidInput(
                f"The nodes of instance type {shape} have {of_shape} GPUs, and Kubernetes knows of none: NVIDIA's "
                "device plug-in is not at work there."
            )
        if fitting:
            return max(fitting)
        if of_shape is not None:
            return of_shape
        have = sorted({node.shape for node in found if node.shape})
        raise InvalidInput(
            f"No node of the cluster is of the instance type {shape}"
            + (f": it has {', '.join(have)}." if have else ".")
            + " Name one of those with --shape, or leave it out."
        )
    kinds = sorted({(node.gpus, node.shape or "?") for node in found if node.gpus})
    if len({gpus for gpus, _ in kinds}) > 1:
        listed = ", ".join(f"{name} ({gpus})" for gpus, name in kinds)
        raise InvalidInput(
            f"The cluster has nodes with different numbers of GPUs: {listed}. Say which with --shape."
        )
    return kinds[0][0] if kinds else 0


def cpus_each(found: Sequence[NodeRoom], shape: str | None, gpus: int) -> int:
    """Return the CPUs that Ray gives away of one machine: those of the smallest node that fits; 0: there is none."""
    return min((node.cpus for node in that_fit(found, shape, gpus)), default=0)


def efa_each(found: Sequence[NodeRoom], shape: str | None, gpus: int) -> int:
    """Return the EFA interfaces of one machine: as many as every node has that fits."""
    return min((node.efa for node in that_fit(found, shape, gpus)), default=0)


def whole_cpus(quantity: str) -> int:
    """Return the whole CPUs of a quantity of Kubernetes, `3920m` or `8`."""
    return int(quantity[:-1]) // 1000 if quantity.endswith("m") else int(float(quantity))


def with_room(found: Sequence[NodeRoom], shape: str | None, gpus: int) -> tuple[int, int | None]:
    """Return how many nodes fit, and how many of those have all their GPUs free (None: not known)."""
    fitting = that_fit(found, shape, gpus)
    if any(node.free_gpus is None for node in fitting) and gpus:
        return len(fitting), None
    return len(fitting), sum((node.free_gpus or 0) >= gpus for node in fitting)


def that_fit(found: Sequence[NodeRoom], shape: str | None, gpus: int) -> list[NodeRoom]:
    """Return the nodes on which a machine with so many GPUs can be."""
    return [node for node in found if node.gpus >= gpus and shape in (None, node.shape)]


def _usable(node: Mapping[str, Any]) -> bool:
    spec = node.get("spec") or {}
    ready = any(
        one["type"] == "Ready" and one["status"] == "True"
        for one in node.get("status", {}).get("conditions") or ()
    )
    strange = [
        one
        for one in spec.get("taints") or ()
        if one["key"] != GPU and one["effect"] in ("NoSchedule", "NoExecute")
    ]
    return ready and not spec.get("unschedulable") and not strange


def _gpus(resources: Mapping[str, str] | None) -> int:
    return int((resources or {}).get(GPU, 0))
