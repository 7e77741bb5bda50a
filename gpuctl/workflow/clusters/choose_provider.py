"""Choose the provider and the cluster for a spec, given the existing clusters. Calls no cloud."""

import itertools
from dataclasses import replace

from gpuctl.app import App
from gpuctl.workflow.clusters.limits import provider_in_journal
from inventories.disk.store import ClusterFolder
from inventories.errors import InvalidInput, InventoryError
from inventories.specs.spec import Spec
from provision.clouds import CLOUDS, RENTED, base_of
from provision.errors import RefusedPlan, UnknownShape

BASE_LENGTH = 16
"""Number of characters of a cluster's name that a name derived from it keeps."""


def resolve_shape(spec: Spec) -> Spec:
    """Return the spec with its shape's name as the cloud writes it.

    Raises UnknownShape for a GPU's name or a part of a shape's, and InvalidInput if shape, provider and region are of
    different clouds.
    """
    from gpuctl.shape_names import proposals, written
    from provision.clouds import refuse_foreign
    from provision.pricing.catalog import provider_by_name

    provider = spec.provider
    if spec.shape is not None and provider in (None, *RENTED):
        spec = replace(spec, shape=written(spec.shape))
        assert spec.shape is not None
        owner = "local" if spec.shape == "local" else provider_by_name(spec.shape)
        meant = proposals(spec.shape, provider and base_of(provider)) if owner is None else ""
        if meant:
            raise UnknownShape(meant)
        if provider is not None and owner in CLOUDS and owner != base_of(provider):
            raise InvalidInput(
                f"{spec.shape} is a shape of {owner.upper()}: leave out --provider {provider}, or name another shape."
            )
        provider = provider or owner
    if provider is not None and provider in RENTED:
        refuse_foreign(spec.region, provider)
    return spec


def choose_provider(folder: ClusterFolder, spec: Spec) -> str:
    """Return the name of the spec's provider; an existing cluster keeps the provider it was begun with."""
    from provision.clouds import check_name
    from provision.pricing.catalog import infer

    had = provider_name(folder)
    if had is not None and spec == replace(spec, provider=None, shape=None, hosts=None, context=None):
        spec = replace(spec, provider=had)
    name = infer(spec)
    check_name(name)
    if had is not None and name != had:
        raise RefusedPlan(
            f"The cluster {folder.name} is of provider {had}, not {name}. Remove it first (gpuctl down --cluster "
            f"{folder.name}), or make a new one beside it, with the same options: gpuctl up --cluster "
            f"{_free(folder, name).name} …"
        )
    return name


def provider_name(folder: ClusterFolder) -> str | None:
    """Return the cluster's provider: from its inventory, or from the journal if the inventory is lost or torn."""
    try:
        if folder.exists():
            return folder.load().provider
    except InventoryError:
        pass  # the journal knows as well
    return provider_in_journal(folder)


def folder_to_plan(app: App, folder: ClusterFolder, spec: Spec) -> ClusterFolder:
    """Return the cluster's folder, or a free one if the cluster has another provider: a dry run should not fail."""
    from provision.clouds import names
    from provision.pricing.catalog import infer

    had = provider_name(folder)
    if had is None or spec == replace(spec, provider=None, shape=None, hosts=None, context=None):
        return folder
    name = infer(spec)
    if name == had or name not in names():
        return folder
    free = _free(folder, name)
    app.output.say(
        f"note: the cluster {folder.name} is of provider {had}, so this is the plan of a new one: `gpuctl up "
        f"--cluster {free.name}` and the same options make it"
    )
    return free


def _free(folder: ClusterFolder, provider: str) -> ClusterFolder:
    """Return the folder of an unused cluster name, made of this one's name and the provider."""
    for number in itertools.count(1):
        end = "" if number == 1 else f"-{number}"
        name = f"{folder.name[:BASE_LENGTH]}-{provider}{end}"
        free = ClusterFolder(folder.path.with_name(name))
        if provider_name(free) is None:
            return free
    raise AssertionError("there is always a next number")
