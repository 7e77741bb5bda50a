"""The node's NVIDIA GPUs: those that the driver shows, those on the PCI bus, and what is wrong in between."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

PCI = Path("/sys/bus/pci/devices")
MODULE = Path("/sys/module/nvidia")
REBOOT_REQUIRED = Path("/var/run/reboot-required")

NVIDIA = "0x10de"
DISPLAY = "0x03"
"""Class of display controllers; GPUs without a display (0x0302) are among them."""
QUERY = ["--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
QUERY_TIMEOUT_S = 30


def read() -> Dict[str, Any]:
    """`gpus`: those that a run may use. `driver`: what stands between them and the hardware."""
    devices = on_the_bus(PCI)
    program = shutil.which("nvidia-smi")
    status: Optional[int] = None
    said = ""
    if program is not None:
        status, said = _ask(program)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "gpus": parse_gpus(said, visible) if status == 0 else [],
        "driver": {
            "devices": devices,
            "module": MODULE.exists(),
            "smi_exit": status,
            "smi_said": "" if status == 0 else said.strip()[:500],
            "reboot_required": REBOOT_REQUIRED.exists(),
        },
    }


def on_the_bus(pci: Path) -> int:
    """How many NVIDIA GPUs are plugged in, driver or not."""
    found = 0
    try:
        devices = list(pci.iterdir())
    except OSError:
        return 0
    for device in devices:
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        found += vendor == NVIDIA and kind.startswith(DISPLAY)
    return found


def _ask(program: str) -> Tuple[int, str]:
    """nvidia-smi's exit status and what it said; -1: it hung."""
    try:
        shown = subprocess.run(
            [program, *QUERY],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, "nvidia-smi did not answer within {} s".format(QUERY_TIMEOUT_S)
    return shown.returncode, shown.stdout.decode(errors="replace")


def parse_gpus(csv: str, visible: Optional[str]) -> List[Dict[str, Any]]:
    """nvidia-smi's CSV rows, of the devices named by index or UUID in `visible` (None: all; empty: none)."""
    wanted = None if visible is None else [word.strip() for word in visible.split(",")]
    found = []
    for line in csv.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5:
            continue
        index, uuid, name, memory, driver = cells
        if wanted is not None and index not in wanted and not any(w and uuid.startswith(w) for w in wanted):
            continue
        memory_mb = int(memory) if memory.isdigit() else None
        found.append({"index": int(index), "name": name, "memory_mb": memory_mb, "driver": driver})
    return found
