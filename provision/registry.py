"""The providers of this build by name, each imported when it is used."""

import importlib

from inventories.errors import InvalidInput
from inventories.spec import Spec
from inventories.store import ClusterFolder
from inventories.suggest import did_you_mean
from provision.clouds import CLOUDS
from provision.errors import UnknownProvider, UnknownShape
from provision.provider import Provider

PROVIDERS: dict[str, tuple[str, str]] = {
    "local": ("provision.local.provider", "hosts on this machine, free, for trying things out"),
    "hosts": ("provision.hosts", "machines that you have already, from an inventory file"),
}
"""The module and what the provider offers. A module has `provider(folder) -> Provider`.

Rented machines are one provider over `provision.clouds`."""

NAMES = (*PROVIDERS, *CLOUDS)


def load(name: str, folder: ClusterFolder) -> Provider:
    """The provider of that name for one cluster. Raises UnknownProvider where this build has none."""
    check_name(name)
    if name in CLOUDS:
        from provision.cloud.provider import CloudProvider

        return CloudProvider(name, folder)
    module = importlib.import_module(PROVIDERS[name][0])
    made: Provider = module.provider(folder)
    return made


def check_name(name: str) -> None:
    """Raise UnknownProvider for a name that no provider of this build has."""
    if name not in NAMES:
        raise UnknownProvider(
            f"This build of gpuctl has no provider '{name}'{did_you_mean(name, NAMES) or '.'} "
            f"Give {' or '.join(NAMES)} with `--provider`."
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
