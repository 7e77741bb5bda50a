"""Properties of a node that may spoil a run and are not among its facts: hostname, MTU, inodes, stale ranks."""

import os
import re
import socket
from pathlib import Path
from threading import Thread
from typing import Any, Callable, Dict, List, Optional

from remote.node import listening, network, run_state
from remote.node.checks import facts
from remote.node.home_folder import NODE_HOME
from remote.shared.constants import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RUNS
from remote.shared.files import read_text

HOSTNAME_TIMEOUT_S = 2.0
NCCL_PACKAGES = ("nvidia_nccl_cu12", "nvidia_nccl_cu13")


def read(address: str) -> Dict[str, Any]:
    """Read all properties; peers connect to `address` (or name). Unknown values are `None`."""
    interface = network.interface_of(network.address_of(address) or address)
    return {
        "interface": interface,
        "mtu": None if interface is None else mtu_of(interface),
        "hostname": socket.gethostname(),
        "hostname_addresses": addresses_of(socket.gethostname()),
        "free_inodes": free_inodes(),
        "nccl": next(filter(None, map(facts.package_version, NCCL_PACKAGES)), None),
        "stale": stale(),
    }


def mtu_of(interface: str) -> Optional[int]:
    """The interface's MTU, bytes."""
    text = read_text(Path("/sys/class/net/{}/mtu".format(interface))).strip()
    return int(text) if text.isdecimal() else None


def addresses_of(name: str) -> Optional[List[str]]:
    """Return the IPv4 addresses of a name as this machine sees it; empty: no address; `None`: no answer in time."""

    def ask() -> List[str]:
        try:
            entries = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            return []
        return sorted({str(entry[4][0]) for entry in entries})

    return within(HOSTNAME_TIMEOUT_S, ask)


def within(timeout_s: float, work: Callable[[], List[str]]) -> Optional[List[str]]:
    """Return the result of `work`, or `None` if it takes too long; its thread then continues alone."""
    done: List[List[str]] = []
    thread = Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return done[0] if done else None


def free_inodes() -> Optional[int]:
    """Files that can still be made in our folder; `None` where the file system does not count them."""
    disk = os.statvfs(str(NODE_HOME if NODE_HOME.exists() else NODE_HOME.parent))
    return disk.f_favail if disk.f_files else None


def stale(home: Path = NODE_HOME, proc: Path = listening.PROC) -> List[Dict[str, Any]]:
    """This user's processes of runs of this node that are over: pid, command, run, gpu (holds one), ports."""
    processes: List[Dict[str, Any]] = []
    over: Dict[str, bool] = {}
    for pid in listening.pids(proc):
        variables = environment_of(pid, proc)
        run_dir = variables.get(RUN_DIR_VARIABLE, "")
        if not run_dir.startswith("{}/{}/".format(home, RUNS)) or pid == os.getpid():
            continue
        if run_dir not in over:
            over[run_dir] = not run_state.state(Path(run_dir))["running"]
        if over[run_dir]:
            processes.append(
                {
                    "pid": pid,
                    "command": listening.command_of(pid, proc),
                    "run": variables.get(RUN_ID_VARIABLE, ""),
                    "gpu": any(re.match(r"/dev/nvidia\d", path) for path in listening.open_files(pid, proc)),
                    "ports": [],
                }
            )
    if processes:
        rows = listening.read(proc)
        for entry in processes:
            entry["ports"] = sorted({row["port"] for row in rows if row["pid"] == entry["pid"]})
    return processes


def environment_of(pid: int, proc: Path = listening.PROC) -> Dict[str, str]:
    """The environment that a process was started with; empty where it is another user's, or gone."""
    try:
        data = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.decode(errors="replace").partition("=") for part in data.split(b"\0") if part)
    return {name: value for name, _, value in pairs}
