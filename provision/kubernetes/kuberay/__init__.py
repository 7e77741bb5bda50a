"""KubeRay's operator: its manifests, and how they are applied.

The manifests are KubeRay's own, unchanged (Apache-2.0, see LICENSE beside them): what kustomize makes of
`ray-operator/config/default` of the release in VERSION, in a namespace of their own. `tools/kuberay_manifests.py`
wrote them.
"""

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
NAMESPACE = "kuberay-system"
"""Where the operator runs."""
DEPLOYMENT = "kuberay-operator"


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release of KubeRay, as the file VERSION has it."""

    version: str
    commit: str
    source: str
    sha256: str
    """Of the manifests, uncompressed."""


def release() -> Release:
    """The release that the manifests are of."""
    return Release(**yaml.safe_load((FOLDER / "VERSION").read_text()))


def manifests() -> list[dict[str, Any]]:
    """All objects of the operator, in the order in which they are to be applied. The caller may change them."""
    objects: list[dict[str, Any]] = json.loads(text())
    return objects


@cache
def text() -> bytes:
    """Return the manifests, uncompressed."""
    return lzma.decompress((FOLDER / "manifests.json.xz").read_bytes())
