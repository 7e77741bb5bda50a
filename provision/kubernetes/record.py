"""The record of a cluster of pods on this computer: `clusters/<name>/kubernetes.json`."""

from dataclasses import dataclass, field
from typing import Any

from inventories import codec
from inventories.disk import files
from inventories.disk.store import ClusterFolder
from inventories.errors import CorruptFile

FILE = "kubernetes.json"
REBUILD = (
    "The namespace is still in the cluster, and its name begins with gpuctl-: `kubectl delete namespace` removes all "
    "of it. Then remove the cluster's folder."
)


@dataclass(frozen=True, kw_only=True)
class KubernetesCluster:
    """The request for a cluster, on the disk before the first call."""

    name: str
    id: str
    """Random, 6 hexadecimal digits; in the namespace's name, and the value of the label `gpuctl/cluster-id`."""
    owner: str
    created_at: str
    """ISO 8601, UTC."""
    context: str
    """Context of the kubeconfig, also if it was the current one."""
    server: str
    """URL of the API server that the context meant."""
    shape: str | None = None
    """Instance type of the nodes. `None`: any."""
    gpus: int = 0
    """GPUs of each machine."""
    cpus: int = 0
    """CPUs of each machine for Ray. 0: not known, and KubeRay takes the pod's request, 1."""
    efa: int = 0
    """AWS's EFA interfaces of each machine."""
    tainted: tuple[str, ...] = ()
    """Keys of the nodes' taints, without that of GPUs."""
    image: str
    """The containers' image."""
    python: str | None = None
    """Interpreter to use in the pods unchanged. `None`: the image's."""
    count: int = 0
    """Number of machines after the last `up`."""
    request: dict[str, Any] | None = field(default=None, metadata=codec.OMITTED)
    """Plain JSON: the record of the cloud's cluster whose nodes run the pods. `None`: gpuctl made no nodes."""

    @property
    def namespace(self) -> str:
        """The namespace of all its objects."""
        return f"gpuctl-{self.name}-{self.id}"


def load(folder: ClusterFolder, *, rebuild: str = REBUILD) -> KubernetesCluster | None:
    """Return the record. `None`: no request was sent yet.

    `rebuild`: advice for a lost record. Raises CorruptFile and NewerFormat.
    """
    path = folder.path / FILE
    data = files.read_bytes(path)
    if data is not None:
        return codec.load(KubernetesCluster, data, str(path), rebuild=rebuild)
    if folder.exists():
        raise CorruptFile(f"'{path}' is missing, so it is not known where the pods are. {rebuild}")
    return None


def save(folder: ClusterFolder, cluster: KubernetesCluster) -> None:
    """Replace the record, atomically. Makes the folder."""
    folder.make()
    files.write_atomic(folder.path / FILE, codec.dump(cluster))
