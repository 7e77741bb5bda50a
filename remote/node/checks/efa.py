"""The software that NCCL needs for AWS's EFA: the plug-in aws-ofi-nccl, and libfabric."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

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
        try:
            listing = subprocess.run(
                [program, "-p"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=LDCONFIG_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        return _CACHED.findall(listing.stdout.decode(errors="replace"))
    return []


def _among(names: Sequence[str], paths: Sequence[str]) -> List[str]:
    return [path for path in paths if os.path.basename(path) in names]


def _in_folders(names: Sequence[str], folders: Sequence[str]) -> List[str]:
    candidates = [Path(folder) / name for folder in folders if folder for name in names]
    return [str(path) for path in candidates if path.exists()]
