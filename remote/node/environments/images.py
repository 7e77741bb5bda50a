"""Pythons that an image brings with torch in them, found by their usual places: for messages to name them."""

import os
from pathlib import Path
from typing import Dict, List, Optional

PLACES = (
    "/opt/pytorch/bin/python3",  # AWS Deep Learning AMIs
    "/opt/conda/bin/python3",  # … and containers with conda
    "/opt/conda/envs/*/bin/python3",
    "~/anaconda3/envs/*/bin/python3",  # older Deep Learning AMIs, OCI's AI images
    "~/miniconda3/envs/*/bin/python3",
    "/opt/venv/bin/python3",
    "/usr/local/bin/python3",  # NVIDIA's and PyTorch's containers
)
"""Glob patterns of interpreters, the likeliest first."""


def interpreters() -> List[Dict[str, str]]:
    """`python` and `torch`, its version, of each that is there and has it. Nothing is started."""
    paths = []
    for place in PLACES:
        pattern = os.path.expanduser(place)
        for python in sorted(Path("/").glob(pattern.lstrip("/"))):
            version = torch_of(python)
            if version is not None and os.access(str(python), os.X_OK):
                paths.append({"python": str(python), "torch": version})
    return paths


def torch_of(python: Path) -> Optional[str]:
    """Return the version of torch in the site-packages next to an interpreter."""
    prefix = python.parent.parent
    for kind in ("site-packages", "dist-packages"):
        for metadata in prefix.glob("lib/python3.*/{}/torch-*.dist-info".format(kind)):
            return metadata.name[len("torch-") : -len(".dist-info")]
    return None
