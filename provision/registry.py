"""Providers, loaded by name when they are used: SDKs are large, and one of them is enough."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from inventories.disk.store import ClusterFolder
from provision.clouds import CLOUDS, KUBERNETES, PROVIDERS, check_name, describe, refuse_missing

if TYPE_CHECKING:
    from provision.kubernetes.pods import Pods
    from provision.provider import Provider


@runtime_checkable
class PodProvider(Protocol):
    """A provider whose machines are pods."""

    def pods(self) -> "Pods | None":
        """Return the machines as pods. `None`: Kubernetes has no object of the cluster yet."""


def load(name: str, folder: ClusterFolder) -> "Provider":
    """Return the provider of that name for one cluster. Raises UnknownProvider.

    Example:
        provider = load("local", Store(home).cluster("default"))
        machines = provider.create(provider.plan(Spec(count=2), None), folder.journal)
    """
    check_name(name)
    if name in CLOUDS:
        from provision.rented.provider import CloudProvider

        return CloudProvider(name, folder)
    if _in_pods(name):
        refuse_missing(name, "kubernetes")
    module = PROVIDERS[name][0] if name in PROVIDERS else describe(name).provider
    assert module is not None
    provider: Provider = importlib.import_module(module).provider(folder)
    return provider


def pods_of(name: str, folder: ClusterFolder) -> "Pods | None":
    """Return the machines of a cluster as pods. `None`: no pods yet, or machines of another kind."""
    provider = load(name, folder) if _in_pods(name) else None
    return provider.pods() if isinstance(provider, PodProvider) else None


def _in_pods(name: str) -> bool:
    return name in ("kubernetes", *KUBERNETES)
