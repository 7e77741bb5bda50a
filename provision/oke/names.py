"""Names of what belongs to a cluster. Pure. Its tags tell whose it is: names on OCI need not be unique."""

from provision.records import CloudCluster

PROVIDER = "oke"
CPU_POOL = "cpu"


def cluster_name(cluster: CloudCluster) -> str:
    """The name of the Kubernetes cluster."""
    return f"gpuctl-{cluster.name}-{cluster.id}"


def gpu_pool(zone: str) -> str:
    """The name of the GPU node pool in an availability domain, `Uocm:EU-FRANKFURT-1-AD-1`."""
    return f"gpu-{zone.rpartition(':')[2].lower()}"
