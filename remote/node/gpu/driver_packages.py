"""The packages of Ubuntu that make a machine's GPUs work: chosen from names, without asking the system.

Ubuntu has for each server branch of the driver (`580`) and each kind of module (the open one, which knows GPUs from
Turing on, and the proprietary one)

    linux-modules-nvidia-580-server-open-6.8.0-1035-oracle     modules built and signed for one kernel
    linux-modules-nvidia-580-server-open-oracle[-6.8]          follows the kernels of a flavour
    nvidia-headless-no-dkms-580-server-open                    the driver without its modules
    nvidia-headless-580-server-open                            the same, with modules that are built on the machine
    nvidia-utils-580-server                                    nvidia-smi
    nvidia-fabricmanager-580                                   what NVSwitches need
"""

import re
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Sequence

from remote.node.gpu.apt import Failed
from remote.node.gpu.gpus import SUBNET_MANAGED

MAXWELL, TURING, BLACKWELL = 0x1340, 0x1E00, 0x2900
"""The first PCI device ids of these generations."""
LAST_FOR_KEPLER, LAST_FOR_VOLTA = 470, 580
KERNEL = re.compile(r"(\d+\.\d+)\.\d+-\d+-([a-z0-9.-]+)")

Machine = NamedTuple(
    "Machine",
    [("kernels", Sequence[str]), ("gpus", Sequence[int]), ("fabric", bool), ("installed", AbstractSet[str])],
)
"""`kernels`: releases, the running one and the one that boots next. `gpus`: PCI device ids. `installed`: packages."""


def pattern(kernels: Sequence[str]) -> str:
    """The extended regular expression of the names that `choose` wants to know of."""
    headers = "|".join("linux-headers-{}".format(kernel.replace(".", "[.]")) for kernel in kernels)
    driver = "linux-modules-nvidia-[0-9]+-server|nvidia-(headless(-no-dkms)?|utils)-[0-9]+-server"
    return "^({}|nvidia-fabricmanager-|nvlsm$|({})$)".format(driver, headers)


def choose(offered: AbstractSet[str], machine: Machine, version: Optional[str]) -> Dict[str, Any]:
    """The branch and its packages: packages with built modules before packages that build them.

    `version`: the requested branch; `None`: the installed one, else the newest. Raises Failed with the reason if no
    branch fits.
    """
    last = last_branch(machine.gpus)
    available = branches(offered)
    fitting = [branch for branch in available if last is None or branch <= last]
    if version is not None:
        fitting = [branch for branch in fitting if branch == int(version)]
    if not fitting:
        reason = "too_new" if available else "no_packages"
        if available and version is not None and int(version) not in available:
            reason = "no_version"
        raise Failed(reason, branches=available, version=version, last=last)
    had = branches(machine.installed)
    fitting.sort(key=lambda branch: (branch not in had, -branch))
    for built in (True, False):
        for branch in fitting:
            for kind in kinds(machine.gpus):
                packages = (_built if built else _to_build)(offered, machine, branch, kind)
                if packages is not None:
                    return {"branch": str(branch), "packages": packages, "built": built}
    if machine.fabric and not any(_fabric(offered, machine, branch) for branch in fitting):
        raise Failed("no_fabric", branches=fitting)
    raise Failed("kernel", kernels=list(machine.kernels), branches=fitting)


def branches(names: AbstractSet[str]) -> List[int]:
    """The server branches whose nvidia-smi is among these packages, newest first."""
    matches = (re.match(r"nvidia-utils-(\d+)-server$", name) for name in names)
    return sorted({int(match.group(1)) for match in matches if match}, reverse=True)


def last_branch(gpus: Sequence[int]) -> Optional[int]:
    """The last branch that knows all these GPUs; `None` where the newest does."""
    oldest = min(gpus, default=TURING)
    if oldest < MAXWELL:
        return LAST_FOR_KEPLER
    return LAST_FOR_VOLTA if oldest < TURING else None


def kinds(gpus: Sequence[int]) -> List[str]:
    """The kinds of module that know all these GPUs, as package names have them; the better one first."""
    if min(gpus, default=TURING) < TURING:
        return [""]
    return ["-open"] if max(gpus, default=TURING) >= BLACKWELL else ["-open", ""]


def tracks(kernel: str, installed: AbstractSet[str]) -> List[str]:
    """Return the names under which Ubuntu may follow a kernel, the most fitting first.

    The kernels of its installed images, as `oracle` or `generic-hwe-22.04`, and the kernel of its series,
    `oracle-6.8`.
    """
    match = KERNEL.fullmatch(kernel)
    if match is None:
        return []
    series, flavour = match.groups()
    images = (re.match(r"linux-image-([a-z].*)$", name) for name in sorted(installed))
    followed = [image.group(1) for image in images if image]
    return [
        *(name for name in followed if name == flavour or name.startswith(flavour + "-")),
        "{}-{}".format(flavour, series),
    ]


def _built(offered: AbstractSet[str], machine: Machine, branch: int, kind: str) -> Optional[List[str]]:
    """The packages with modules for the kernel that boots next; `None` where one of them is missing."""
    stem = "linux-modules-nvidia-{}-server{}-".format(branch, kind)
    modules = [stem + kernel for kernel in machine.kernels if stem + kernel in offered]
    followed = [
        stem + track for track in tracks(machine.kernels[-1], machine.installed) if stem + track in offered
    ]
    # What follows a kernel brings the newest of its kind, which then boots.
    if not followed and stem + machine.kernels[-1] not in modules:
        return None
    driver = "nvidia-headless-no-dkms-{}-server{}".format(branch, kind)
    return _all(offered, machine, branch, [*followed[:1], *modules, driver])


def _to_build(offered: AbstractSet[str], machine: Machine, branch: int, kind: str) -> Optional[List[str]]:
    """The packages that build the modules on the machine; `None` where one of them is missing."""
    headers = ["linux-headers-" + kernel for kernel in machine.kernels]
    missing = [name for name in headers if name not in machine.installed]
    return _all(offered, machine, branch, [*missing, "nvidia-headless-{}-server{}".format(branch, kind)])


def _all(
    offered: AbstractSet[str], machine: Machine, branch: int, packages: List[str]
) -> Optional[List[str]]:
    fabric = _fabric(offered, machine, branch)
    if fabric is None:
        return None
    packages_to_install = [*packages, "nvidia-utils-{}-server".format(branch), *fabric]
    return packages_to_install if set(packages_to_install) <= offered | machine.installed else None


def _fabric(offered: AbstractSet[str], machine: Machine, branch: int) -> Optional[List[str]]:
    """Return the packages for NVSwitch. Empty list: the machine has no NVSwitch.

    `None`: a needed package is not offered.
    """
    if not machine.fabric:
        return []
    names = ["nvidia-fabricmanager-{}".format(branch)]
    names += ["nvlsm"] if SUBNET_MANAGED & set(machine.gpus) else []
    return names if set(names) <= offered else None
