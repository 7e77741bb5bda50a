"""The node's NVIDIA GPUs: the driver's list, the PCI bus, and the problems in between."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from remote.node import process
from remote.node.gpu.gpu_usage import is_visible
from remote.shared.files import read_text

PCI = Path("/sys/bus/pci/devices")
MODULE = Path("/sys/module/nvidia")
REBOOT_REQUIRED = Path("/var/run/reboot-required")

NVIDIA = "0x10de"
DISPLAY = "0x03"
"""Class of display controllers; GPUs without a display (0x0302) are among them."""
BRIDGE = "0x0680"
"""Class of NVSwitches; not of host bridges (0x0600)."""
SUBNET_MANAGED = frozenset({0x2901, 0x3182})
"""B200 and B300 on boards whose NVSwitches are no PCI devices of NVIDIA's."""
FABRIC_SERVICE = "nvidia-fabricmanager"
OWN_PROGRAMS = ("nvidia-", "nv-")
"""How the names of the driver's own programs begin: nvidia-smi, nvidia-persistenced, nv-fabricmanager, …"""
QUERY = ["--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
QUERY_TIMEOUT_S = 30.0
END_S = 1.0
"""Time to go for one that was killed."""


Bus = NamedTuple("Bus", [("gpus", Sequence[int]), ("switches", int)])
"""PCI device ids of NVIDIA's GPUs, and the number of NVSwitches."""


def read() -> Dict[str, Any]:
    """Return `gpus`: the usable ones, and `driver`: the layers between them and the hardware."""
    devices = bus(PCI)
    program = shutil.which("nvidia-smi")
    status, smi_output = ask(program) if program is not None else (None, "")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "gpus": parse_gpus(smi_output, visible) if status == 0 else [],
        "driver": {
            "devices": len(devices.gpus),
            "module": MODULE.exists(),
            "smi_exit": status,
            "smi_said": "" if status == 0 else smi_output.strip()[:500],
            "listed": len(rows_of(smi_output)) if status == 0 else 0,
            "reboot_required": REBOOT_REQUIRED.exists(),
            "fabric": fabric_state(program) if needs_fabric(devices) else None,
            "holders": [] if status == 0 or not devices.gpus else holders(),
        },
    }


def count() -> int:
    """Return the number of usable GPUs. 0, too, if nvidia-smi fails."""
    program = shutil.which("nvidia-smi")
    status, output = ask(program) if program is not None else (None, "")
    return len(parse_gpus(output, os.environ.get("CUDA_VISIBLE_DEVICES"))) if status == 0 else 0


def bus(pci: Path) -> Bus:
    """List NVIDIA's devices on the bus, with or without a driver."""
    gpu_ids, switches = [], 0  # type: List[int], int
    try:
        devices = sorted(pci.iterdir())
    except OSError:
        devices = []
    for device in devices:
        vendor, kind = read_text(device / "vendor").strip(), read_text(device / "class").strip()
        if vendor == NVIDIA and kind.startswith(DISPLAY):
            gpu_ids.append(int(read_text(device / "device").strip() or "0", 16))
        switches += vendor == NVIDIA and kind.startswith(BRIDGE)
    return Bus(gpus=gpu_ids, switches=switches)


def needs_fabric(pci_bus: Bus) -> bool:
    """Return whether the GPUs need a running fabric manager."""
    return bool(pci_bus.gpus) and (pci_bus.switches > 0 or bool(SUBNET_MANAGED & set(pci_bus.gpus)))


def fabric_state(program: Optional[str]) -> str:
    """Return systemd's state of the fabric manager: `active`, `failed`, `inactive`, …; `unknown`: it can't be read.

    A manager that is inactive here may run outside this container, so `program`, nvidia-smi, is asked as well.
    """
    _, answer = process.output_of(["systemctl", "is-active", FABRIC_SERVICE], QUERY_TIMEOUT_S)
    state = answer.strip() or "unknown"
    if state == "inactive" and program is not None:
        status, output = ask(program, words=["-q"])
        return "active" if status == 0 and fabric_completed(output) else state
    return state


def fabric_completed(output: str) -> bool:
    """Return whether all GPUs in the output of `nvidia-smi -q` have joined their fabric."""
    states = re.findall(r"^ +Fabric\n +State +: (.*?) *$", output, re.MULTILINE)
    return bool(states) and set(states) == {"Completed"}


def holders(proc: Path = Path("/proc")) -> List[str]:
    """The processes that have NVIDIA's devices open, as `1234 (python3)`; of other users only where this is root.

    The driver's own programs are left out: they are always there, and end with it.
    """
    pids = []
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            opened = [os.readlink(str(handle)) for handle in (folder / "fd").iterdir()]
            name = (folder / "comm").read_text().strip()
        except OSError:  # ended, or another user's
            continue
        if any(path.startswith("/dev/nvidia") for path in opened) and not name.startswith(OWN_PROGRAMS):
            pids.append("{} ({})".format(folder.name, name))
    return pids


def ask(program: str, timeout_s: float = QUERY_TIMEOUT_S, words: Sequence[str] = QUERY) -> Tuple[int, str]:
    """Return nvidia-smi's exit status and its output; -1: it hung. Takes little longer than the timeout."""
    asking = subprocess.Popen(
        [program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = asking.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        asking.kill()
        assert asking.stdout is not None
        asking.stdout.close()  # its own children may have it open for long
        # Stuck in the driver, where no signal reaches it, it is left to the system.
        with suppress(subprocess.TimeoutExpired):
            asking.wait(END_S)
        return -1, "nvidia-smi did not answer within {:g} s".format(timeout_s)
    return asking.returncode, output.decode(errors="replace")


def rows_of(csv: str) -> List[List[str]]:
    """The cells of each GPU that nvidia-smi lists; what else it says is left out."""
    rows = ([cell.strip() for cell in line.split(",")] for line in csv.splitlines())
    return [cells for cells in rows if len(cells) == 5 and cells[0].isdigit()]


def parse_gpus(csv: str, visible: Optional[str]) -> List[Dict[str, Any]]:
    """Return nvidia-smi's CSV rows of the devices in `visible`, by index or UUID (`None`: all; empty: no device)."""
    gpus = []
    for index, uuid, name, memory, driver in rows_of(csv):
        if is_visible(int(index), uuid, visible):
            memory_mb = int(memory) if memory.isdigit() else None
            gpus.append(
                {"index": int(index), "uuid": uuid, "name": name, "memory_mb": memory_mb, "driver": driver}
            )
    return gpus
