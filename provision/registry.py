"""Providers, loaded by name when they are used: SDKs are large, and one of them is enough."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from inventories.disk.store import ClusterFolder
from inventories.errors import InvalidInput
from inventories.specs.spec import Spec
from provision.clouds import CLOUDS, KUBERNETES, PROVIDERS, check_name, describe, refuse_missing
from provision.errors import UnknownShape

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


def infer(spec: Spec) -> str:
    """Return the name of the provider that the spec means; an explicit one wins.

    Raises:
        UnknownShape: no provider has the shape.
        InvalidInput: nothing names a provider.
    """
    if spec.provider is not None:
        return spec.provider
    if spec.hosts is not None:
        return "hosts"
    if spec.context is not None:
        return "kubernetes"
    if spec.shape is None:
        raise InvalidInput(
            "Nothing says where the machines come from. Give `--provider local` for hosts on this machine, "
            "`--shape SHAPE` for rented ones, or `--hosts FILE` for those that you have."
        )
    return "local" if spec.shape == "local" else _provider_of(spec.shape)


def _provider_of(shape: str) -> str:
    from provision.pricing.catalog import nearest_shapes, provider_by_name

    # A name that looks like a cloud's is for that cloud to know: it has more than our catalog.
    provider = provider_by_name(shape)
    if provider is None:
        near = nearest_shapes(shape)
        hint = f"The nearest are {', '.join(near)}. " if near else ""
        raise UnknownShape(f"No provider has a shape '{shape}'. {hint}`gpuctl shapes` lists all.")
    return provider
