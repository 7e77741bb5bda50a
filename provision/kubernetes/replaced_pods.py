"""Pods that are lost, and those that KubeRay has made in their place, which are no machines yet.

Also of a cluster in a cloud's Kubernetes, whose kubeconfig is in the cluster's folder.
"""

from collections.abc import Sequence

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from provision.clock import SystemClock
from provision.kubernetes import record, waiting
from provision.kubernetes.api import connect
from provision.kubernetes.pods import Pods, rank_of


def ready_pods(folder: ClusterFolder) -> int:
    """Count the new ones, where the cluster has all its pods, each ready; else return 0. Raises ProvisionError."""
    pods = _pods(folder)
    workers = pods.workers()
    ready = [pod for pod in workers if waiting.of(pod).stage == "ready"]
    if len(workers) != pods.cluster.count or len(ready) != pods.cluster.count:
        return 0
    return sum(rank_of(pod) is None for pod in ready)


def lost_pods(folder: ClusterFolder, machines: Sequence[Machine]) -> tuple[Machine, ...]:
    """Return those of the machines whose pods are gone, or on their way out. Raises ProvisionError."""
    there = {pod["metadata"]["name"] for pod in _pods(folder).workers()}
    return tuple(machine for machine in machines if machine.host not in there)


def _pods(folder: ClusterFolder) -> Pods:
    cluster, clock, own = record.load(folder), SystemClock(), folder.kubeconfig_path
    assert cluster is not None, "an inventory of pods has a record beside it"
    return Pods(
        connect(cluster.context, kubeconfig=own if own.exists() else None, clock=clock), cluster, clock
    )
