"""Write KubeRay's manifests into the package: `python tools/kuberay_manifests.py CHECKOUT TAG`.

They are what `kubectl kustomize ray-operator/config/default` prints at that tag, in a namespace of their own, as one
JSON list, compressed. CHECKOUT is a clone of github.com/ray-project/kuberay; `kubectl` has to be installed.
"""

import hashlib
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "provision" / "kubernetes" / "kuberay"
NAMESPACE = "kuberay-system"
PARTS = ("ray-operator/config", "LICENSE")
OVERLAY = {
    "apiVersion": "kustomize.config.k8s.io/v1beta1",
    "kind": "Kustomization",
    "namespace": NAMESPACE,
    "resources": ["namespace.yaml", "../ray-operator/config/default"],
}
NAMESPACE_OBJECT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def git(checkout: Path, *words: str) -> bytes:
    """What a git command prints."""
    return subprocess.run(["git", "-C", str(checkout), *words], stdout=subprocess.PIPE, check=True).stdout


def rendered(source: Path) -> list[dict[str, Any]]:
    """The objects that kustomize makes of the files in `source`."""
    overlay = source / "overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(OVERLAY))
    (overlay / "namespace.yaml").write_text(yaml.safe_dump(NAMESPACE_OBJECT))
    done = subprocess.run(["kubectl", "kustomize", str(overlay)], stdout=subprocess.PIPE, check=True)
    return list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))


def main() -> None:
    """Write the manifests, their licence, and what they are."""
    checkout, tag = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        archive = git(checkout, "archive", tag, *PARTS)
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(source, filter="data")
        objects = rendered(source)
        (FOLDER / "LICENSE").write_bytes((source / "LICENSE").read_bytes())
    text = json.dumps(objects, separators=(",", ":"), sort_keys=True).encode()
    (FOLDER / "manifests.json.xz").write_bytes(lzma.compress(text, preset=9))
    version = {
        "version": tag.removeprefix("v"),
        "commit": git(checkout, "rev-parse", f"{tag}^{{commit}}").decode().strip(),
        "source": "https://github.com/ray-project/kuberay, ray-operator/config/default",
        "sha256": hashlib.sha256(text).hexdigest(),
    }
    (FOLDER / "VERSION").write_text(yaml.safe_dump(version, sort_keys=False))


if __name__ == "__main__":
    main()
