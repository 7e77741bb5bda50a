"""Provider `oke`: Kubernetes on Oracle's OKE, made and removed."""

from collections.abc import Callable

from inventories.disk.store import ClusterFolder
from provision.clock import Clock
from provision.cloud.records import Target
from provision.managed_kubernetes.provider import ManagedKubernetes
from provision.managed_kubernetes.service import KubernetesService
from provision.oke import service
from provision.oke.cloud import sdk
from provision.oke.facts import FACTS


def provider(
    folder: ClusterFolder,
    *,
    clock: Clock | None = None,
    connect: Callable[[Target, Clock], KubernetesService] = service.connect,
) -> ManagedKubernetes:
    """The provider for one cluster."""
    return ManagedKubernetes(FACTS, folder, sdk, connect, clock=clock)
