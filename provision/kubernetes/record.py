"""What a cluster of pods keeps on this computer beside its inventory: `clusters/<name>/kubernetes.json`."""

from dataclasses import dataclass

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
    """A cluster as it was asked for: on the disk before the first call."""

    name: str
    id: str
    """Random, 6 hexadecimal digits; in the namespace's name, and the value of the label `gpuctl/cluster-id`."""
    owner: str
    created_at: str
    """ISO 8601, UTC."""
    context: str
    """Of the kubeconfig, also where it was the current one."""
    server: str
    """URL of the API server that the context meant."""
    shape: str | None = None
    """Instance type of the nodes. None: any."""
    gpus: int = 0
    """Of each machine."""
    cpus: int = 0
    """Of each machine, what Ray gives away. 0: it was not known, and KubeRay takes what the pod asks for, 1."""
    efa: int = 0
    """AWS's EFA interfaces of each machine."""
    tainted: tuple[str, ...] = ()
    """Keys of the taints that its nodes have beside that of GPUs."""
    image: str
    """The containers' image."""
    python: str | None = None
    """Interpreter to use in the pods as it is. None: the one of the image."""
    count: int = 0
    """Machines that there were when the last `up` was done."""

    @property
    def namespace(self) -> str:
        """The namespace of all its objects."""
        return f"gpuctl-{self.name}-{self.id}"


def load(folder: ClusterFolder, *, rebuild: str = REBUILD) -> KubernetesCluster | None:
    """Return the record; None: nothing was asked of a cluster yet.

    `rebuild`: what to do about one that is lost. Raises CorruptFile and NewerFormat.
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
