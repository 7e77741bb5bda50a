"""The facts of a node, gathered in one go: system, owner, hardware, Python, torch, disk, clock, addresses, runs."""

import os
import platform
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, Sequence

from remote.node import firewall, process, run_state
from remote.node.gpu import gpus
from remote.node.home_folder import NODE_HOME
from remote.node.network import address_of, free_port, ipv4_addresses, route_interface
from remote.shared import frames
from remote.shared.constants import COMPILED_CODE
from remote.shared.files import read_text

DMI = Path("/sys/class/dmi/id")
INFINIBAND = Path("/sys/class/infiniband")

CLOUDS = (
    ("chassis_asset_tag", "OracleCloud.com", "oci"),
    ("sys_vendor", "Amazon EC2", "aws"),
    ("sys_vendor", "Google", "gcp"),
)
"""File of the firmware's table, its first characters, the owner of such machines."""


def command_facts(request: Dict[str, Any], output: BinaryIO) -> None:
    """Answer `facts`: private_ip, peers (addresses), firewall (whether to read it), end_timer (a unit, or `None`)."""
    facts = gather(request["private_ip"], request["peers"], with_firewall=request["firewall"])
    timer = request.get("end_timer")
    facts["end_timer"] = timer_state(timer) if timer else None
    frames.write(output, {"t": frames.FACTS, "facts": facts})


def gather(private_ip: str, peers: List[str], *, with_firewall: bool) -> Dict[str, Any]:
    """Return all facts. Facts that can't be found out, or were not requested, are `None`."""
    NODE_HOME.mkdir(mode=0o700, exist_ok=True)
    disk = os.statvfs(str(NODE_HOME))
    port, cant_listen = free_port(private_ip)
    rdma = rdma_devices()
    claims = run_state.claims()
    return {
        **gpus.read(),
        "hostname": socket.gethostname(),
        "os": _os_name(),
        "home": os.path.expanduser("~"),
        "python": sys.executable,
        "python_version": platform.python_version(),
        "torch": package_version("torch"),
        "ray": package_version("ray"),
        "cloud": cloud(),
        "rdma": rdma,
        "efa": software() if any(device["driver"] == "efa" for device in rdma) else None,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "boot_id": process.boot_id(),
        "machine": machine_identity(),
        "addresses": {peer: address_of(peer) for peer in peers},
        "interfaces": {peer: route_interface(peer) for peer in {*peers, private_ip}},
        "free_port": port,
        "cant_listen": cant_listen,
        "sudo": firewall.has_sudo(),
        "firewall": firewall.read() if with_firewall else None,
        "active_runs": list(claims),
        "claimed_gpus": claims,
        "compiled_code": [name for name in COMPILED_CODE if os.environ.get(name)],
        # Last, so that it is the time of the answer.
        "time": time.time(),
    }


def machine_identity() -> str:
    """Return boot id, network namespace and gpuctl's folder: the same for all addresses of one machine.

    Containers of one kernel differ by their network, local hosts by the folder, machines with one home by the kernel.
    """
    folder = NODE_HOME.stat()
    try:
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:  # macOS
        network = 0
    return "{} {} {} {}".format(process.boot_id(), network, folder.st_dev, folder.st_ino)


def timer_state(unit: str) -> Optional[str]:
    """Return the state of a timer of systemd: `active`, `inactive` or `missing`. `None`: no systemd runs here."""
    if not os.path.isdir("/run/systemd/system"):
        return None
    command = ["systemctl", "show", "--property=LoadState", "--property=ActiveState", unit]
    status, shown = process.output_of(command, 10)
    if status != 0:
        return None
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if state.get("LoadState") == "not-found":
        return "missing"
    return "active" if state.get("ActiveState") == "active" else "inactive"


def _os_name() -> str:
    try:
        text = Path("/etc/os-release").read_text()
    except FileNotFoundError:
        return "{} {}".format(platform.system(), platform.mac_ver()[0]).strip()
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
    return match.group(1) if match else platform.system()


def package_version(name: str) -> Optional[str]:
    """The version of an installed package, by the name of its metadata folder: nothing is imported."""
    folders = list(sys.path)
    if sys.prefix == sys.base_prefix:
        # Isolated mode leaves the user's own site-packages out; the ranks will see them.
        import site

        folders.append(site.getusersitepackages())
    for folder in folders:
        for metadata in Path(folder or ".").glob("{}-*.dist-info".format(name)):
            return metadata.name[len(name) + 1 : -len(".dist-info")]
    return None


PLUGIN_NAMES = ("libnccl-net.so", "libnccl-net-ofi.so", "libnccl-net-aws-ofi.so")


PLUGIN_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/install/lib",
)
"""Folders in which AWS's EFA installer, its images and their users put the plug-in, by release.
https://github.com/NVIDIA-NeMo/RL/pull/2359, https://github.com/aws/aws-ofi-nccl."""


LIBFABRIC_NAMES = ("libfabric.so.1", "libfabric.so")


LIBFABRIC_FOLDERS = ("/opt/amazon/efa/lib", "/opt/amazon/efa/lib64")


_CACHED = re.compile(r"^\s*\S+ \(.*\) => (\S+)$", re.MULTILINE)


LDCONFIG_TIMEOUT_S = 10


def software(
    cached: Optional[Sequence[str]] = None,
    plugin_folders: Sequence[str] = PLUGIN_FOLDERS,
    libfabric_folders: Sequence[str] = LIBFABRIC_FOLDERS,
) -> Dict[str, Any]:
    """Return where the plug-in lies, whether the loader looks there, and whether libfabric is installed.

    `cached`: the libraries in the loader's cache; `None`: `ldconfig` lists them.
    """
    if cached is None:
        cached = cached_libraries()
    path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    loaded = [*_in_folders(PLUGIN_NAMES, path), *_among(PLUGIN_NAMES, cached)]
    installed = _in_folders(PLUGIN_NAMES, plugin_folders)
    libfabric = [*_among(LIBFABRIC_NAMES, cached), *_in_folders(LIBFABRIC_NAMES, [*path, *libfabric_folders])]
    return {
        "plugin": next(iter([*loaded, *installed]), None),
        "loadable": bool(loaded),
        "libfabric": bool(libfabric),
    }


def cached_libraries() -> List[str]:
    """Return the paths in the loader's cache; empty if `ldconfig` can't list them."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        status, listing = process.output_of([program, "-p"], LDCONFIG_TIMEOUT_S)
        if status is not None:
            return _CACHED.findall(listing)
    return []


def _among(names: Sequence[str], paths: Sequence[str]) -> List[str]:
    return [path for path in paths if os.path.basename(path) in names]


def _in_folders(names: Sequence[str], folders: Sequence[str]) -> List[str]:
    candidates = [Path(folder) / name for folder in folders if folder for name in names]
    return [str(path) for path in candidates if path.exists()]


def cloud(dmi: Path = DMI) -> Optional[str]:
    """Return the cloud that rents the machine out. `None`: another cloud, or no cloud."""
    for name, start, cloud_name in CLOUDS:
        if read_text(dmi / name).startswith(start):
            return cloud_name
    return None


def rdma_devices(infiniband: Path = INFINIBAND) -> List[Dict[str, Any]]:
    """Return name, driver and network interfaces of each RDMA device; empty if the kernel has no such subsystem."""
    try:
        names = sorted(path.name for path in infiniband.iterdir())
    except OSError:
        return []
    addressed = {interface for interface, _ in ipv4_addresses()} if names else set()
    devices = []
    for name in names:
        path = infiniband / name / "device"
        try:
            interfaces = sorted(entry.name for entry in (path / "net").iterdir())
        except OSError:
            interfaces = []  # EFA has no network interface
        driver = os.path.basename(os.path.realpath(str(path / "driver")))
        is_addressed = not addressed.isdisjoint(interfaces)
        devices.append({"name": name, "driver": driver, "interfaces": interfaces, "addressed": is_addressed})
    return devices
