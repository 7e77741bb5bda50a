"""Provider `oke`: Kubernetes on Oracle's OKE, made and removed."""

from collections.abc import Callable

from inventories.disk.store import ClusterFolder
from provision.oke import service
from provision.oke.cloud import sdk
from provision.oke.facts import FACTS
from provision.records import Target
from provision.rented.managed_kubernetes.provider import ManagedKubernetes
from provision.rented.managed_kubernetes.service import KubernetesService
from provision.waiting import Clock


def provider(
    folder: ClusterFolder,
    *,
    clock: Clock | None = None,
    connect: Callable[[Target, Clock], KubernetesService] = service.connect,
) -> ManagedKubernetes:
    """The provider for one cluster."""
    return ManagedKubernetes(FACTS, folder, sdk, connect, clock=clock)
