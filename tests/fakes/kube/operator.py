"""Compute one turn of KubeRay's operator for one RayCluster: from the existing objects to its changes. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kube import kuberay
from tests.fakes.kube.quantity import quantity

Document = dict[str, Any]


@dataclass(kw_only=True)
class Turn:
    """Changes that the operator makes."""

    create: list[Document] = field(default_factory=list)
    """Services and pods; pods have a `generateName`."""
    delete: list[Document] = field(default_factory=list)
    """Pods."""
    status: Document | None = None
    """`None`: it is left as it is."""
    refused: str | None = None
    """The warning's text for a RayCluster that the operator refuses."""


def turn(cluster: Document, pods: Sequence[Document], services: Sequence[Document]) -> Turn:
    """Compute one turn; `pods` and `services` are the objects of the cluster's namespace."""
    if "deletionTimestamp" in cluster["metadata"]:
        return Turn()
    if (why := kuberay.refusal(cluster)) is not None:
        return Turn(refused=why)
    kuberay.check_played(cluster)
    made = Turn()
    local = [pod for pod in pods if _owner(pod) == cluster["metadata"]["uid"]]
    made.delete = [pod for pod in local if _over(pod) and "deletionTimestamp" not in pod["metadata"]]
    alive = [pod for pod in local if pod not in made.delete and "deletionTimestamp" not in pod["metadata"]]
    heads = [pod for pod in alive if _label(pod, "ray.io/node-type") == "head"]
    service = kuberay.head_service(cluster)
    if not any(pod["metadata"]["name"] == service["metadata"]["name"] for pod in services):
        made.create.append(service)
    if not heads:
        made.create.append(kuberay.head_pod(cluster))
    for group in cluster["spec"].get("workerGroupSpecs", []):
        workers = [pod for pod in alive if _label(pod, "ray.io/group") == group["groupName"]]
        named = (group.get("scaleStrategy") or {}).get("workersToDelete") or ()
        made.delete += [pod for pod in workers if pod["metadata"]["name"] in named]
        workers = [pod for pod in workers if pod not in made.delete]
        expected = kuberay.workers_wanted(group)
        made.create += [kuberay.worker_pod(cluster, group) for _ in range(expected - len(workers))]
        # As the operator has it: any of them.
        made.delete += random.sample(workers, max(0, len(workers) - expected))
    made.status = status(cluster, local, service["metadata"]["name"])
    return made


def status(cluster: Document, own: Sequence[Document], service: str) -> Document:
    """Return the status that the operator reports for a RayCluster, from its pods."""
    groups = cluster["spec"].get("workerGroupSpecs", [])
    workers = [item for item in own if _label(item, "ray.io/node-type") == "worker"]
    heads = [item for item in own if _label(item, "ray.io/node-type") == "head"]
    desired = sum(kuberay.workers_wanted(group) for group in groups)
    before = cluster.get("status") or {}
    ready = len(own) == desired + 1 and all(_ready(item) for item in own)
    head_ready = bool(heads) and _ready(heads[0])
    provisioned = ready or _was_true(before, "RayClusterProvisioned")
    report: Document = {
        "observedGeneration": cluster["metadata"]["generation"],
        "desiredWorkerReplicas": desired,
        "minWorkerReplicas": sum(group["minReplicas"] for group in groups),
        "maxWorkerReplicas": sum(group["maxReplicas"] for group in groups),
        "availableWorkerReplicas": sum(_phase(item) == "Running" for item in workers),
        "readyWorkerReplicas": sum(_ready(item) for item in workers),
        "desiredGPU": str(sum(_gpus(group) * kuberay.workers_wanted(group) for group in groups)),
        "head": {"serviceName": service},
        "conditions": [
            _condition(
                before,
                "HeadPodReady",
                head_ready,
                "HeadPodRunningAndReady" if head_ready else "HeadPodNotReady" if heads else "HeadPodNotFound",
            ),
            _condition(
                before,
                "RayClusterProvisioned",
                provisioned,
                "AllPodRunningAndReadyFirstTime" if provisioned else "RayClusterPodsProvisioning",
            ),
        ],
    }
    if ready or before.get("state"):
        report["state"] = "ready"
    if heads and (address := (heads[0].get("status") or {}).get("podIP")):
        report["head"] |= {"podIP": address, "serviceIP": address, "podName": heads[0]["metadata"]["name"]}
    return report


def _condition(before: Document, kind: str, true: bool, reason: str) -> Document:
    """Return a condition; it keeps its time while its status does not change."""
    text = "True" if true else "False"
    for item in before.get("conditions", []):
        if (item["type"], item["status"], item["reason"]) == (kind, text, reason):
            return dict(item)
    return {
        "type": kind,
        "status": text,
        "reason": reason,
        "message": reason,
        "lastTransitionTime": "2026-11-01T00:00:00Z",
    }


def _was_true(before: Document, kind: str) -> bool:
    return any(item["type"] == kind and item["status"] == "True" for item in before.get("conditions", []))


def _gpus(group: Document) -> int:
    limits = (group["template"]["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return sum(int(quantity(amount)) for name, amount in limits.items() if name.endswith("gpu"))


def _owner(pod: Document) -> str | None:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return owners[0].get("uid")


def _label(pod: Document, name: str) -> str | None:
    return (pod["metadata"].get("labels") or {}).get(name)


def _phase(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _over(pod: Document) -> bool:
    return _phase(pod) in ("Failed", "Succeeded")


def _ready(pod: Document) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return _phase(pod) == "Running" and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )
