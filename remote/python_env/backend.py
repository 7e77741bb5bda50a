"""The build of torch that suits all nodes of a cluster. One for all: versions and NCCL must match.

uv knows PyTorch's indexes and which driver each CUDA release needs (`--torch-backend auto`); it can't know that
other nodes have older drivers. So it gets a driver's version: the lowest of all nodes, rounded down to the one that
a major release of CUDA begins with, so that an update of the driver does not change the environment.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from remote.errors import PreflightFailed

MAJOR_DRIVERS = ("580.65.06", "525.60.13", "450.80.02")
"""Linux drivers that CUDA 13, 12 and 11 begin with (NVIDIA's CUDA Toolkit Release Notes, minor version
compatibility); newest first."""
OLDEST_DRIVER = MAJOR_DRIVERS[-1]
"""No build that can still be had supports an older one."""
DROPPED_BY_CUDA_13 = ("V100", "P100", "P40", "P4", "M60", "M40", "M10", "TITAN V", "TITAN X")
"""Maxwell, Pascal and Volta: neither CUDA 13 nor PyTorch's builds for CUDA 12.8 have code for them."""
LAST_FOR_THEM = "cu126"
CPU = "cpu"
DRIVER = "driver "
"""Ahead of a driver's version: uv is to decide by it."""


def backend_of(nodes: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """The backend for nodes with these GPUs, as facts list them (`name`, `driver`).

    `cpu` where no node has any, and where a driver is older than all builds with CUDA support; a node without GPUs
    runs the CUDA build of the others. Raises PreflightFailed where a driver's version is not known.
    """
    gpus = [gpu for node in nodes.values() for gpu in node]
    for name, node in nodes.items():
        for gpu in node:
            if not version(str(gpu["driver"])):
                raise PreflightFailed(
                    f"{name}: the version of its GPU driver is not known, by which the build of torch is chosen: "
                    f"nvidia-smi shows {str(gpu['driver'])!r} for its {gpu['name']}. Mend the driver there "
                    "(gpuctl exec -- nvidia-smi), or use an interpreter that has torch: --python PATH"
                )
    if not gpus:
        return CPU
    driver = min(version(str(gpu["driver"])) for gpu in gpus)
    step = next((step for step in MAJOR_DRIVERS if version(step) <= driver), None)
    if step is None:
        return CPU
    if step != OLDEST_DRIVER and any(is_old(str(gpu["name"])) for gpu in gpus):
        return LAST_FOR_THEM
    return DRIVER + step


def is_old(name: str) -> bool:
    """Return whether CUDA 13 no longer supports a GPU, by its name in nvidia-smi."""
    words = name.replace("-", " ")
    return any(f" {old} " in f" {words} " for old in DROPPED_BY_CUDA_13)


def version(text: str) -> tuple[int, ...]:
    """Return `570.86.15` as numbers; empty, which is lower than all others, for a text without numbers."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def settings(backend: str | None) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and environment of uv for a backend; `None`: PyPI's build, the default of uv."""
    if backend is None:
        return [], {}
    if backend.startswith(DRIVER):
        return ["--torch-backend", "auto"], {"UV_CUDA_DRIVER_VERSION": backend[len(DRIVER) :]}
    return ["--torch-backend", backend], {}
