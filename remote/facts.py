"""Facts of the nodes: one round trip each, all at once."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from remote.firewall import FirewallFacts
from remote.firewall import parse as parse_firewall
from remote.sessions.answers import answer_as, reading

if TYPE_CHECKING:
    from remote.sessions.session import Node


@dataclass(frozen=True, kw_only=True)
class RdmaDevice:
    """A device of the kernel's RDMA subsystem."""

    name: str
    """As NCCL_IB_HCA takes it: `mlx5_0`."""
    driver: str
    """`mlx5_core`, `efa`, …"""
    interfaces: tuple[str, ...]
    """Network interfaces of the same hardware."""
    addressed: bool
    """Whether one of them has an IPv4 address, without which RoCE has no GID that leads anywhere."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The layers between the hardware and the GPUs that a run can use."""

    devices: int
    """NVIDIA GPUs on the PCI bus."""
    module: bool
    """Whether the kernel has NVIDIA's module loaded."""
    smi_exit: int | None
    """nvidia-smi's exit status. `None`: nvidia-smi is not installed; -1: it hung."""
    smi_said: str
    """The output of nvidia-smi if it failed."""
    listed: int
    """GPUs in its list, also hidden ones (CUDA_VISIBLE_DEVICES)."""
    reboot_required: bool
    """Whether the system asks for a reboot (packages were installed that need one)."""
    fabric: str | None = None
    """systemd's state of the fabric manager: `active`, `failed`, … `unknown`: it can't be read, as in a container.
    `None`: the GPUs do not need it."""
    holders: tuple[str, ...] = ()
    """Processes that have the GPUs open though nvidia-smi fails, as `1234 (python3)`, as far as they can be seen."""


@dataclass(frozen=True, kw_only=True)
class EfaSoftware:
    """Software that NCCL needs for AWS's EFA, on one node."""

    plugin: str | None
    """Path of the plug-in aws-ofi-nccl. `None`: the node does not have it."""
    loadable: bool
    """Whether the loader looks in the plug-in's folder."""
    libfabric: bool
    """Whether libfabric is installed."""


NO_GPU = Driver(devices=0, module=False, smi_exit=None, smi_said="", listed=0, reboot_required=False)


EndTimer = Literal["active", "inactive", "missing"]
"""`missing`: systemd knows no timer of that name."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a node. `None`: could not be found out."""

    hostname: str
    os: str
    home: str
    python: str
    """The interpreter that the ranks use: the one that answered, or an environment's; absolute."""
    python_version: str | None
    torch: str | None
    """Version of the installed torch. `None`: not installed for that interpreter."""
    ray: str | None
    """Version of the installed Ray. `None`: not installed for that interpreter."""
    packages: tuple[str, ...] | None
    """`name==version` of the packages of the ranks' environment. `None`: the machine's own Python is used."""
    gpus: tuple[dict[str, Any], ...]
    driver: Driver
    cloud: str | None
    """`oci`, `aws`, `gcp`, from the firmware. `None`: another cloud, or no cloud."""
    rdma: tuple[RdmaDevice, ...]
    cpus: int
    disk_free_bytes: int
    boot_id: str
    """Two nodes with one boot id share a kernel, and so its cores."""
    machine: str
    """Two nodes with the same text are one machine, which the inventory lists twice."""
    clock_offset_s: float
    """The node's clock minus this computer's, seconds; the error is the answer's travel time."""
    addresses: Mapping[str, str | None]
    """Peer as the inventory names it → its IP address, as this node resolves it."""
    interfaces: Mapping[str, str | None]
    """Peer's address → the interface on the route to it."""
    free_port: int | None
    """One that can be listened on at the node's private_ip."""
    cant_listen: str | None
    """Why nothing can listen at private_ip, in the system's words. `None`: something can, be a port free or not."""
    active_runs: tuple[str, ...]
    """The runs that are in the way of another."""
    sudo: bool
    """Whether the command sudo is installed."""
    firewall: FirewallFacts | None
    """`None`: it was not asked for."""
    end_timer: EndTimer | None = None
    """State of the timer that powers the machine off. `None`: nobody asked for it, or the machine has no systemd."""
    efa: EfaSoftware | None = None
    """`None`: the node has no EFA device."""
    compiled_code: tuple[str, ...] = ()
    """Variables of COMPILED_CODE that the node's own environment sets."""
    claimed_gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Active run → UUIDs of the GPUs that it has to itself. Empty: all."""
    below: str | None = None
    """The interpreter that `python` lies over, where a project's own environment does; absolute."""

    @property
    def python_below(self) -> str:
        """The interpreter whose packages the ranks find, in addition to a project's own environment."""
        return self.below or self.python

    @property
    def programs(self) -> str:
        """The folders of the programs that come with the interpreter, as PATH has them."""
        pythons = (self.python,) if self.below is None else (self.python, self.below)
        return ":".join(str(PurePosixPath(python).parent) for python in pythons)


def gather(
    node: "Node", peers: tuple[str, ...], *, firewall: bool = False, end_timer: str | None = None
) -> Facts:
    """A node's facts, with the routes to its peers' addresses. `firewall`: also what lets them in, or does not.

    `end_timer`: name of systemd's timer whose state is a fact as well.
    """
    request = {
        "private_ip": node.machine.private_ip,
        "peers": list(peers),
        "firewall": firewall,
        "end_timer": end_timer,
    }
    answer = node.call("facts", request)
    now = time.time()
    with reading(node.name, "the facts"):
        return parse(answer["facts"], now=now)


def parse(facts: Mapping[str, Any], *, now: float) -> Facts:
    """Facts from the node's document; `now` is this computer's clock when it came, unix seconds."""
    known = {**facts, "firewall": None, "packages": None, "clock_offset_s": float(facts["time"]) - now}
    firewall = None if facts["firewall"] is None else parse_firewall(facts["firewall"])
    return replace(answer_as(Facts, known, "the document"), firewall=firewall)


def with_environment(
    facts: Facts, *, python: str, python_version: str | None, torch: str | None, packages: Sequence[str]
) -> Facts:
    """Return a node's facts with the interpreter and the packages of an environment, not the machine's."""
    return replace(
        facts,
        python=python,
        python_version=python_version,
        torch=torch,
        ray=_version(packages, "ray"),
        packages=tuple(packages),
    )


def over(facts: Facts, *, python: str, packages: Sequence[str]) -> Facts:
    """Return the facts of a node whose ranks use an environment over the interpreter of `facts`.

    `packages`: the environment's own, which come first.
    """
    pinned = {pin.partition("==")[0] for pin in packages}
    below = [pin for pin in facts.packages or () if pin.partition("==")[0] not in pinned]
    return replace(
        facts,
        python=python,
        below=facts.python,
        torch=_version(packages, "torch") or facts.torch,
        ray=_version(packages, "ray") or facts.ray,
        packages=None if facts.packages is None else tuple(sorted([*below, *packages])),
    )


def _version(packages: Sequence[str], name: str) -> str | None:
    return next((pin.removeprefix(f"{name}==") for pin in packages if pin.startswith(f"{name}==")), None)


def without_gpus(facts: Facts) -> Facts:
    """Return the facts of a node whose ranks use its CPUs, as if it had no GPU."""
    return replace(facts, gpus=(), driver=NO_GPU)


def with_free_gpus(facts: Facts, count: int) -> Facts:
    """Return the facts of a node for a run that takes this number of its free GPUs, as if it had no others.

    Active runs that have GPUs of their own are then in nobody's way. Too few are free: the facts as they are.
    """
    claims = [facts.claimed_gpus.get(run, ()) for run in facts.active_runs]
    claimed = {uuid for claim in claims for uuid in claim}
    free = tuple(gpu for gpu in facts.gpus if gpu["uuid"] not in claimed)
    if not all(claims) or len(free) < count:
        return facts
    return replace(facts, gpus=free[:count], active_runs=())


def cores_of_a_node(facts: Mapping[str, Facts]) -> dict[str, int]:
    """Cores that each node may use: nodes that share a kernel share its cores evenly."""
    sharing: dict[str, int] = {}
    for fact in facts.values():
        sharing[fact.boot_id] = sharing.get(fact.boot_id, 0) + 1
    return {name: max(1, fact.cpus // sharing[fact.boot_id]) for name, fact in facts.items()}
