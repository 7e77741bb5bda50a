"""The node's NVIDIA GPUs: those that the driver shows, those on the PCI bus, and what is wrong in between."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

PCI = Path("/sys/bus/pci/devices")
MODULE = Path("/sys/module/nvidia")
REBOOT_REQUIRED = Path("/var/run/reboot-required")

NVIDIA = "0x10de"
DISPLAY = "0x03"
"""Class of display controllers; GPUs without a display (0x0302) are among them."""
QUERY = ["--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
QUERY_TIMEOUT_S = 30.0
END_S = 1.0
"""Time to go for one that was killed."""


def read() -> Dict[str, Any]:
    """`gpus`: those that a run may use. `driver`: what stands between them and the hardware."""
    devices = on_the_bus(PCI)
    program = shutil.which("nvidia-smi")
    status: Optional[int] = None
    said = ""
    if program is not None:
        status, said = ask(program)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "gpus": parse_gpus(said, visible) if status == 0 else [],
        "driver": {
            "devices": devices,
            "module": MODULE.exists(),
            "smi_exit": status,
            "smi_said": "" if status == 0 else said.strip()[:500],
            "listed": len(rows_of(said)) if status == 0 else 0,
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


def ask(program: str, timeout_s: float = QUERY_TIMEOUT_S) -> Tuple[int, str]:
    """nvidia-smi's exit status and what it said; -1: it hung. Takes little longer than the timeout."""
    process = subprocess.Popen(
        [program, *QUERY], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        assert process.stdout is not None
        process.stdout.close()  # its own children may have it open for long
        # Stuck in the driver, where no signal reaches it, it is left to the system.
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        return -1, "nvidia-smi did not answer within {:g} s".format(timeout_s)
    return process.returncode, said.decode(errors="replace")


def rows_of(csv: str) -> List[List[str]]:
    """The cells of each GPU that nvidia-smi lists; what else it says is left out."""
    rows = ([cell.strip() for cell in line.split(",")] for line in csv.splitlines())
    return [cells for cells in rows if len(cells) == 5 and cells[0].isdigit()]


def parse_gpus(csv: str, visible: Optional[str]) -> List[Dict[str, Any]]:
    """nvidia-smi's CSV rows, of the devices named by index or UUID in `visible` (None: all; empty: none)."""
    wanted = None if visible is None else [word.strip() for word in visible.split(",")]
    found = []
    for index, uuid, name, memory, driver in rows_of(csv):
        if wanted is not None and index not in wanted and not any(w and uuid.startswith(w) for w in wanted):
            continue
        memory_mb = int(memory) if memory.isdigit() else None
        found.append({"index": int(index), "name": name, "memory_mb": memory_mb, "driver": driver})
    return found
