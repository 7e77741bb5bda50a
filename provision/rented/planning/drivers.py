"""The source of the GPUs' driver, by the request and the image. Pure."""

import re
from dataclasses import dataclass

from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan

_BRINGS_DRIVER = re.compile(r"nvidia|deep learning|(?<![a-z])gpu(?![a-z])", re.IGNORECASE)
"""Names of images with a driver: `Oracle-Linux-9.6-Gen2-GPU-…`, `NVIDIA GPU-Optimized VMI`."""

_NO_NAMES = ("ocid1.", "ami-", "/", "ssm:", "resolve:ssm:", "marketplace:")
"""Begins of texts that are no names of images: an id, a parameter, a listing."""


@dataclass(frozen=True, kw_only=True)
class System:
    """The system of an image, by its name and its cloud's description."""

    name: str
    ubuntu: bool
    brings_driver: bool


def system_of(name: str, about: str = "") -> System:
    """Return the system of an image. `about`: its operating system, its description."""
    text = f"{name} {about}"
    return System(
        name=name, ubuntu="ubuntu" in text.casefold(), brings_driver=bool(_BRINGS_DRIVER.search(text))
    )


def branch_of(requested: str | None) -> str | None:
    """Return the requested branch, such as `580`. `None`: gpuctl chooses it, or no driver is requested."""
    return None if requested in (None, "auto", "none") else requested


def expected_plan(
    requested: str | None,
    image: str | None,
    *,
    shape: str,
    nvidia: bool,
    default: DriverPlan | None,
    last: str | None = None,
) -> DriverPlan | None:
    """Return the driver plan for an unknown account. `None`: not known.

    `image`: the requested one; `default`: the plan of the cloud's default image; `last`: see `driver_plan`, which has
    the errors, too.
    """
    if requested == "none" or (not nvidia and branch_of(requested) is None):
        return NO_DRIVER
    if image is None:
        plain = System(name="Ubuntu", ubuntu=True, brings_driver=False)
        if branch_of(requested) or last:
            return driver_plan(requested, plain, shape=shape, nvidia=nvidia, last=last)
        return default
    system = system_of(image)
    if image.startswith(_NO_NAMES) or not (system.ubuntu or system.brings_driver):
        return None
    return driver_plan(requested, system, shape=shape, nvidia=nvidia, last=last)


def driver_plan(
    requested: str | None, system: System, *, shape: str, nvidia: bool, last: str | None = None
) -> DriverPlan:
    """Return the driver plan of machines of that shape (`nvidia`: it has NVIDIA GPUs) and image.

    An image other than Ubuntu counts as one with a driver, as gpuctl installs only Ubuntu's: it is checked after the
    boot. `last`: the last branch that runs the shape's GPUs. `None`: the newest does. Raises InvalidInput for a
    branch that can't be installed.
    """
    branch = branch_of(requested)
    if branch and last and int(branch) > int(last):
        raise InvalidInput(
            f"Driver {branch} does not run the GPUs of {shape}: the last branch that does is {last}. Leave out "
            f"--driver, which installs {last}."
        )
    if branch and not nvidia:
        raise InvalidInput(
            f"{shape} has no NVIDIA GPUs, so there is no driver {branch} for it. Leave out --driver."
        )
    if requested == "none" or not nvidia:
        return NO_DRIVER
    plain = system.ubuntu and not system.brings_driver
    if branch and not plain:
        why = "brings a driver of its own" if system.brings_driver else "is no Ubuntu"
        raise InvalidInput(
            f"Driver {branch} can't be installed on the image '{system.name}', which {why}. Leave out --driver, or "
            "name a plain Ubuntu with --image."
        )
    return DriverPlan(source="install", version=branch or last) if plain else DriverPlan(source="image")
