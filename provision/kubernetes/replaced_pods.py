"""Pods that KubeRay has made in the place of lost ones, and that are no machines yet."""

from inventories.disk.store import ClusterFolder
from provision.clock import SystemClock
from provision.kubernetes import record, waiting
from provision.kubernetes.api import connect
from provision.kubernetes.pods import Pods, rank_of


def ready_pods(folder: ClusterFolder) -> int:
    """Count them, where the cluster has all its pods, each ready; else return 0.

    Also of a cluster in the cloud's Kubernetes, whose kubeconfig is in the folder. Raises ProvisionError.
    """
    cluster = record.load(folder)
    if cluster is None:
        return 0
    clock, own = SystemClock(), folder.kubeconfig_path
    api = connect(cluster.context, kubeconfig=own if own.exists() else None, clock=clock)
    workers = Pods(api, cluster, clock).workers()
    ready = [pod for pod in workers if waiting.of(pod).stage == "ready"]
    if len(workers) != cluster.count or len(ready) != cluster.count:
        return 0
    return sum(rank_of(pod) is None for pod in ready)
