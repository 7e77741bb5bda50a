"""Where the GPUs' driver comes from, by what was asked for and what the image is. Pure."""

import re
from dataclasses import dataclass

from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan

_BRINGS_DRIVER = re.compile(r"nvidia|deep learning|(?<![a-z])gpu(?![a-z])", re.IGNORECASE)
"""Of Oracle's and the marketplaces' names: `Oracle-Linux-9.6-Gen2-GPU-…`, `NVIDIA GPU-Optimized VMI`."""

_NO_NAMES = ("ocid1.", "ami-", "/", "ssm:", "resolve:ssm:", "marketplace:")
"""What begins so does not name the image itself: an id, a parameter, a listing."""


@dataclass(frozen=True, kw_only=True)
class System:
    """What an image is, as far as its name and what its cloud says of it tell."""

    name: str
    ubuntu: bool
    brings_driver: bool


def system_of(name: str, about: str = "") -> System:
    """From the image's name, and what else is said of it: its operating system, its description."""
    text = f"{name} {about}"
    return System(
        name=name, ubuntu="ubuntu" in text.casefold(), brings_driver=bool(_BRINGS_DRIVER.search(text))
    )


def branch_of(asked: str | None) -> str | None:
    """The branch that was asked for, such as `580`. None: it is left to gpuctl, or nobody looks after it."""
    return None if asked in (None, "auto", "none") else asked


def expected_plan(
    asked: str | None,
    image: str | None,
    *,
    shape: str,
    nvidia: bool,
    default: DriverPlan | None,
    last: str | None = None,
) -> DriverPlan | None:
    """The driver as it will be, where no account can be asked for the image. None: not known.

    `image`: as it was asked for; `default`: what the cloud's own choice of image comes to; `last`: as `driver_plan`
    takes it. Raises as `driver_plan`.
    """
    if asked == "none" or (not nvidia and branch_of(asked) is None):
        return NO_DRIVER
    if image is None:
        plain = System(name="Ubuntu", ubuntu=True, brings_driver=False)
        if branch_of(asked) or last:
            return driver_plan(asked, plain, shape=shape, nvidia=nvidia, last=last)
        return default
    system = system_of(image)
    if image.startswith(_NO_NAMES) or not (system.ubuntu or system.brings_driver):
        return None
    return driver_plan(asked, system, shape=shape, nvidia=nvidia, last=last)


def driver_plan(
    asked: str | None, system: System, *, shape: str, nvidia: bool, last: str | None = None
) -> DriverPlan:
    """The driver of machines of that shape (`nvidia`: it has NVIDIA GPUs) and image.

    An image that says nothing is taken to bring a driver, as only Ubuntu's can be installed: it is looked for
    after the boot. `last`: the last branch that runs the shape's GPUs; None: the newest does. Raises InvalidInput
    for a branch that can't be installed.
    """
    branch = branch_of(asked)
    if branch and last and int(branch) > int(last):
        raise InvalidInput(
            f"Driver {branch} does not run the GPUs of {shape}: the last branch that does is {last}. Leave out "
            f"--driver, which installs {last}."
        )
    if branch and not nvidia:
        raise InvalidInput(
            f"{shape} has no NVIDIA GPUs, so there is no driver {branch} for it. Leave out --driver."
        )
    if asked == "none" or not nvidia:
        return NO_DRIVER
    plain = system.ubuntu and not system.brings_driver
    if branch and not plain:
        why = "brings a driver of its own" if system.brings_driver else "is no Ubuntu"
        raise InvalidInput(
            f"Driver {branch} can't be installed on the image '{system.name}', which {why}. Leave out --driver, or "
            "name a plain Ubuntu with --image."
        )
    return DriverPlan(source="install", version=branch or last) if plain else DriverPlan(source="image")
