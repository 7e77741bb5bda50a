"""The catalog of shapes by their cloud's names: GPUs, networks, list prices.

A shape outside the catalog can still be used if its cloud knows it: `provider_by_name` finds the cloud by the name
alone. Refreshed prices are in `provision.pricing.prices`.
"""

import re

from inventories.errors import InvalidInput
from inventories.specs.spec import Spec
from inventories.text import nearest
from provision.clouds import Shape, descriptions
from provision.errors import UnknownShape

SHAPES: dict[str, Shape] = {shape.name: shape for cloud in descriptions() for shape in cloud.shapes}
"""Shapes by name."""


def nvidia_by_name(name: str) -> bool:
    """Return whether machines of that shape have NVIDIA GPUs, by the catalog or the pattern of the name."""
    known = SHAPES.get(name)
    if known is not None:
        return known.gpus > 0
    return any(re.fullmatch(cloud.nvidia_shape_pattern, name) for cloud in descriptions())


def last_driver_branch(name: str) -> str | None:
    """Return the last branch of NVIDIA's driver that runs the shape's GPUs. `None`: the newest, or not known."""
    known = SHAPES.get(name)
    return known.last_driver if known else None


def gpus_of(shape: str) -> int | None:
    """Return the GPUs of a machine of that shape; `None`: the catalog does not have it."""
    known = SHAPES.get(shape)
    return known.gpus if known else None


def nearest_shapes(name: str) -> list[str]:
    """Return the names most similar to `name`, best first, `local` among them. Empty: no similar name."""
    return nearest(name, ["local", *SHAPES])


def provider_by_name(name: str) -> str | None:
    """Return the cloud of a shape, by the catalog or the pattern of the name: `oci`, `aws`. `None`: no cloud's.

    A name that matches a cloud's pattern may still be unknown to the cloud.
    """
    if name in SHAPES:
        return SHAPES[name].provider
    return next((cloud.name for cloud in descriptions() if re.fullmatch(cloud.shape_pattern, name)), None)


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
    if spec.shape == "local":
        return "local"
    # A name that looks like a cloud's is for that cloud to know: it has more than our catalog.
    provider = provider_by_name(spec.shape)
    if provider is None:
        near = nearest_shapes(spec.shape)
        hint = f"The nearest are {', '.join(near)}. " if near else ""
        raise UnknownShape(f"No provider has a shape '{spec.shape}'. {hint}`gpuctl shapes` lists all.")
    return provider
