"""GPUs that this machine has and PyTorch can't use: a job does not start on CPUs unless it was asked to."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from train.errors import BadEnvironment
from train.options import Device

PCI = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
DISPLAY = "0x03"
"""Class of display controllers; GPUs without a display (0x0302) are among them."""
ALLOWED = "GPUCTL_UNUSED_GPUS"
"""A variable: with the value `note`, as on gpuctl's local hosts, the job reports such GPUs and runs on CPUs."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def check(
    requested: Device, device: torch.device, environ: Mapping[str, str] = os.environ, pci: Path = PCI
) -> str | None:
    """Raise BadEnvironment if the job would run on CPUs by default though the machine has GPUs.

    Returns the problem as a note if the environment allows it. `None`: no problem.
    """
    count = nvidia_gpus(pci) if requested == "auto" and device.type == "cpu" else 0
    if count == 0:
        return None
    cause, fix = why(environ.get(VISIBLE), torch.version.cuda, torch_error)
    gpus = f"{count} NVIDIA GPU{'s' * (count != 1)}"
    problem = f"PyTorch can use none of the {gpus} in this machine: {cause}"
    if environ.get(ALLOWED) == "note":
        return f"note: {problem}; training on the CPU"
    raise BadEnvironment(f"{problem}. {fix}; or train on the CPU: --device cpu")


def nvidia_gpus(pci: Path) -> int:
    """Count the NVIDIA GPUs in this machine, with or without a driver; 0 where that is unknown."""
    count = 0
    try:
        devices = list(pci.iterdir())
    except OSError:
        return 0
    for device in devices:
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == NVIDIA and kind.startswith(DISPLAY)
    return count


def why(visible: str | None, cuda: str | None, reason: Callable[[], str]) -> tuple[str, str]:
    """Return the cause and the fix. `visible`: CUDA_VISIBLE_DEVICES; `cuda`: the release that torch was built for."""
    if cuda is None:
        return (
            f"torch {torch.__version__} is built without CUDA",
            "Install a build with CUDA (without --python and with no build named in the requirements, gpuctl train "
            "installs the one that fits the driver)",
        )
    if visible is not None and visible.strip() in ("", "-1"):
        return f"{VISIBLE}={visible} hides them", "Unset it"
    return reason() or f"torch is built for CUDA {cuda} and finds none", "See what nvidia-smi says"


def torch_error() -> str:
    """Return the first sentence of PyTorch's error where it initializes CUDA; empty: no error."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return re.split(r"\.\s|\n", str(error))[0].rstrip(".")
    return ""
