"""The NVIDIA driver of a cluster's machines: the requested one, and its source in a plan."""

import re
from dataclasses import dataclass
from typing import Literal

from inventories.errors import InvalidInput
from inventories.text import shown

DriverSource = Literal["none", "image", "install"]
"""`none`: nobody looks after it; `image`: the image brings one; `install`: gpuctl installs Ubuntu's packages."""

KNOWN_BRANCHES = ("470", "515", "525", "535", "550", "565", "570", "575", "580", "590", "595")
"""That Ubuntu has, or had, for servers. It gets new ones, which can be asked for all the same."""

LAST_FOR_KEPLER, LAST_FOR_VOLTA = "470", "580"
"""The last branches with Kepler (K80), and with Maxwell, Pascal and Volta (M60, P100, V100).
https://forums.developer.nvidia.com/t/unix-graphics-feature-deprecation-schedule/60588."""

_VERSION = re.compile(r"[1-9][0-9]{2}")


@dataclass(frozen=True, kw_only=True)
class DriverPlan:
    """The source of the driver of the machines' GPUs."""

    source: DriverSource
    version: str | None = None
    """With `install`: the branch of Ubuntu's server packages, `580`. Default: the newest that fits the GPUs."""


NO_DRIVER = DriverPlan(source="none")


def check_driver(value: object) -> str:
    """Return the value of `--driver`: `auto`, `none`, or a branch such as `580`. Raises InvalidInput."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and (text in ("auto", "none") or _VERSION.fullmatch(text)):
        return text
    raise InvalidInput(
        f"Driver {shown(value)} can't be used: a driver is auto, none, or a branch of NVIDIA's driver that Ubuntu "
        "packages, such as 580."
    )


def unknown_branch(driver: DriverPlan | None) -> tuple[str, ...]:
    """Return a note on a requested branch that gpuctl does not know."""
    if driver is None or driver.version is None or driver.version in KNOWN_BRANCHES:
        return ()
    return (
        f"gpuctl knows no branch {driver.version} of the driver, only {', '.join(KNOWN_BRANCHES)}: whether Ubuntu "
        "has it shows once the machines are there",
    )
