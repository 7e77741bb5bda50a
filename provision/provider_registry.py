"""The providers of this build by name, each imported when it is used: SDKs are large, and one of them is enough.

A new provider is a line here, and the module or folder that it names.
"""

import importlib
import importlib.util
from collections import ChainMap
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from inventories.did_you_mean import did_you_mean
from inventories.disk.store import ClusterFolder
from inventories.errors import InvalidInput
from inventories.spec import Spec
from provision.errors import UnknownProvider, UnknownShape

if TYPE_CHECKING:
    from provision.clock import Clock
    from provision.kubernetes.pods import Pods
    from provision.provider import Provider
    from provision.records import CloudCluster, Finding, NewMachine, Offer, Preview, Target
    from provision.rented.description import CloudDescription
    from provision.rented.interface import Cloud

PROVIDERS: dict[str, tuple[str, str]] = {
    "local": ("provision.local.provider", "hosts on this machine, free, for trying things out"),
    "hosts": ("provision.hosts", "machines that you have already, from an inventory file"),
    "kubernetes": ("provision.kubernetes.provider", "pods in a cluster of Kubernetes that has KubeRay"),
}
"""Name → a module with `provider(folder) -> Provider`, and what it offers."""

CLOUDS: dict[str, str] = {
    "oci": "provision.oci.description",
    "aws": "provision.aws.description",
}
"""Name → a module with a cloud's `DESCRIPTION`. All clouds have one provider: `provision.rented.provider`."""

KUBERNETES: dict[str, str] = {
    "eks": "provision.eks.description",
    "oke": "provision.oke.description",
}
"""The same for Kubernetes as a service of a cloud: its `DESCRIPTION` names that cloud, and a provider of its own."""

RENTED = ChainMap(KUBERNETES, CLOUDS)
"""Whatever is billed, and has its record in `provision.rented.state`."""


def names() -> tuple[str, ...]:
    """All providers."""
    return (*PROVIDERS, *RENTED)


def about(name: str) -> str:
    """What a provider offers, in a few words."""
    return PROVIDERS[name][1] if name in PROVIDERS else describe(name).about


def load(name: str, folder: ClusterFolder) -> "Provider":
    """The provider of that name for one cluster. Raises UnknownProvider where this build has none."""
    check_name(name)
    if name in CLOUDS:
        from provision.rented.provider import CloudProvider

        return CloudProvider(name, folder)
    if _in_pods(name) and importlib.util.find_spec("kubernetes") is None:
        raise UnknownProvider(
            f"Provider {name} needs the Python package 'kubernetes'. Install it beside gpuctl: "
            "`pip install kubernetes`."
        )
    module = importlib.import_module(_module_of(name))
    made: Provider = module.provider(folder)
    return made


def pods_of(name: str, folder: ClusterFolder) -> "Pods | None":
    """The pods that are a cluster's machines. None: its machines are none, or nothing was asked of Kubernetes yet."""
    from provision.provider import PodProvider

    provider = load(name, folder) if _in_pods(name) else None
    return provider.pods() if isinstance(provider, PodProvider) else None


def _in_pods(name: str) -> bool:
    return name in ("kubernetes", *KUBERNETES)


def _module_of(name: str) -> str:
    if name in PROVIDERS:
        return PROVIDERS[name][0]
    found = describe(name).provider
    assert found is not None
    return found


def base_of(name: str) -> str:
    """The cloud whose account, network, shapes and regions a provider has: `aws` for `eks`, else itself."""
    return (describe(name).base or name) if name in KUBERNETES else name


def check_name(name: str) -> None:
    """Raise UnknownProvider for a name that no provider of this build has."""
    if name not in names():
        raise UnknownProvider(
            f"This build of gpuctl has no provider '{name}'{did_you_mean(name, names()) or '.'} "
            f"Give {' or '.join(names())} with `--provider`."
        )


def infer(spec: Spec) -> str:
    """The name of the provider that the spec means; an explicit one wins.

    Raises UnknownShape for a shape that nobody has, InvalidInput where nothing names a provider, and
    UnknownProvider for a shape whose provider this build does not have.
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
    if spec.shape == "local":
        return "local"
    return _provider_of(spec.shape)


def _provider_of(name: str) -> str:
    from provision.pricing.catalog import nearest_shapes, provider_by_name

    # A name that looks like a cloud's is for that cloud to know: it has more than our catalog.
    provider = provider_by_name(name)
    if provider is None:
        near = nearest_shapes(name)
        hint = f"The nearest are {', '.join(near)}. " if near else ""
        raise UnknownShape(f"No provider has a shape '{name}'. {hint}`gpuctl shapes` lists all.")
    return provider


def describe(cloud: str) -> "CloudDescription":
    """What is known of a cloud. Raises UnknownProvider."""
    if cloud in PROVIDERS:
        raise UnknownProvider(
            f"Provider {cloud} rents nothing, so no account has clusters of it. `gpuctl clusters` lists them, and "
            f"`gpuctl down --cluster NAME` removes one. Accounts are those of {' and '.join(CLOUDS)}."
        )
    if cloud not in RENTED:
        raise UnknownProvider(f"There is no cloud '{cloud}'. Give {' or '.join(RENTED)}.")
    found: CloudDescription = importlib.import_module(RENTED[cloud]).DESCRIPTION
    return found


def descriptions() -> "tuple[CloudDescription, ...]":
    """What is known of all clouds of virtual machines."""
    return tuple(describe(name) for name in CLOUDS)


def installed(cloud: str) -> bool:
    """Whether the cloud's SDK is there. Does not import it."""
    package = describe(cloud).sdk
    return package is None or importlib.util.find_spec(package) is not None


def connect(target: "Target", clock: "Clock | None" = None) -> "Cloud":
    """The account and region of `target`. Raises BadCredentials, and UnknownProvider without its SDK."""
    from provision.clock import SystemClock

    made: Cloud = _control(target.provider).connect(target, clock=clock or SystemClock())
    return made


def configured(cloud: str) -> bool:
    """Whether somebody has set the cloud up on this computer, rightly or not. Asks no account."""
    answer: bool = _control(cloud).configured()
    return answer


def sdk(cloud: str) -> "Finding":
    """Which SDK is there, of which version. Asks no account."""
    found: Finding = _control(cloud).sdk()
    return found


def outline(cluster: "CloudCluster", machines: "Sequence[NewMachine]") -> "tuple[Offer, Preview]":
    """What would be made of these machines in an account that nothing is known of."""
    found: tuple[Offer, Preview] = _control(cluster.target.provider).outline(cluster, machines)
    return found


def _control(cloud: str) -> ModuleType:
    description = describe(cloud)
    if not installed(cloud):
        raise UnknownProvider(
            f"Provider {cloud} needs the Python package '{description.sdk}'. Install it beside gpuctl: "
            f"`pip install {description.sdk}`."
        )
    return importlib.import_module(description.control)
