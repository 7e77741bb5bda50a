"""The shapes that gpuctl knows, by the names that their clouds give them: GPUs, networks, list prices.

A shape that is not listed here can still be used where its cloud knows it: `provider_by_name` tells from the
name alone whose it would be. Prices that were asked for since are in `provision.pricing.prices`.
"""

import re

from inventories.text import nearest
from provision.clouds import Shape, descriptions

SHAPES: dict[str, Shape] = {shape.name: shape for cloud in descriptions() for shape in cloud.shapes}
"""By name."""


def nvidia_by_name(name: str) -> bool:
    """Whether machines of that shape have NVIDIA GPUs, as far as the name tells."""
    known = SHAPES.get(name)
    if known is not None:
        return known.gpus > 0
    return any(re.fullmatch(cloud.nvidia_shape_pattern, name) for cloud in descriptions())


def last_driver_branch(name: str) -> str | None:
    """Return the last branch of NVIDIA's driver that runs the shape's GPUs, as the catalog has it.

    Returns:
        None: the newest branch runs them, or the catalog does not have the shape.
    """
    known = SHAPES.get(name)
    return known.last_driver if known else None


def gpus_of(shape: str) -> int | None:
    """Return the GPUs of a machine of that shape; None: the catalog does not have it."""
    known = SHAPES.get(shape)
    return known.gpus if known else None


def nearest_shapes(name: str) -> list[str]:
    """The names most like `name`, best first, `local` among them; none where nothing is like it."""
    return nearest(name, ["local", *SHAPES])


def provider_by_name(name: str) -> str | None:
    """Whose shape a name is, or looks like where it is not listed: `oci`, `aws`. None: nobody's.

    That a name looks like one does not mean that there is such a shape: only the cloud knows.
    """
    if name in SHAPES:
        return SHAPES[name].provider
    return next((cloud.name for cloud in descriptions() if re.fullmatch(cloud.shape_pattern, name)), None)
