"""NCCL's settings for a node's network. Pure: facts in, variables out.

NCCL would pick an interface by its name, and tunes its sockets on AWS and GCP alone; which of the RDMA devices
lead to the other nodes it can't know. Names and meanings: NVIDIA's "NCCL Environment Variables".
"""

from collections.abc import Mapping

from remote.facts import Facts, RdmaDevice

SOCKETS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
"""One TCP connection carries some 10 Gbps at best, and by default NCCL opens one. NVIDIA names 4 and 4 for
networks of 100 Gbps; the product must not pass 64."""
TUNES_ITSELF = frozenset({"aws", "gcp"})

_CLUSTER_NETWORK = {
    "NCCL_IB_SL": "0",
    "NCCL_IB_TC": "41",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_IGNORE_CPU_AFFINITY": "1",
}
_HOPPER = {
    **_CLUSTER_NETWORK,
    "NCCL_IB_QPS_PER_CONNECTION": "1",
    "NCCL_IB_SPLIT_DATA_ON_QPS": "0",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_CUMEM_ENABLE": "0",
}
OCI_RDMA: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("A100", {**_CLUSTER_NETWORK, "NCCL_IB_QPS_PER_CONNECTION": "4"}),
    ("H100", _HOPPER),
    ("H200", _HOPPER),
    ("B200", _HOPPER),
    ("B300", _HOPPER),
)
"""Part of the GPU's name → what OCI's cluster networks (RoCE v2) need. Source: oracle-quickstart/oci-hpc."""
OTHER_OCI_RDMA: Mapping[str, str] = _CLUSTER_NETWORK

EFA = {"FI_PROVIDER": "efa"}
"""For NCCL's libfabric plugin, which AWS's images have."""
EFA_RDMA = {"FI_EFA_USE_DEVICE_RDMA": "1"}
"""P4d's, whose older libfabric leaves RDMA off; later machines have it on. Where EFA has no RDMA (G4dn, G5),
libfabric aborts at it."""
P4D_GPU = "A100"

INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Settings that keep NCCL and gloo from choosing an interface."""


def variables(facts: Facts, *, master_addr: str, nodes: int) -> dict[str, str]:
    """Variables for every process of a node. `nodes`: how many take part in the run."""
    interface = facts.interfaces.get(master_addr)
    if interface is None:
        return {}
    # The exact form: a plain `ens3` would take ens3f0 as well. gloo has the exact form only.
    settings = {
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "GLOO_SOCKET_IFNAME": interface,
    }
    if nodes == 1 or not facts.gpus:
        return settings
    if any(device.driver == "efa" for device in facts.rdma):
        return settings | EFA | (EFA_RDMA if P4D_GPU in _gpu(facts) else {})
    if facts.cloud not in TUNES_ITSELF:
        settings |= SOCKETS
    if facts.cloud != "oci":
        return settings
    # OCI's cluster network is a network of its own next to the VCN, which carries no RDMA.
    devices = cluster_network(facts, interface)
    if devices:
        tuned = next((values for part, values in OCI_RDMA if part in _gpu(facts)), OTHER_OCI_RDMA)
        return {**settings, **tuned, "NCCL_IB_HCA": "=" + ",".join(device.name for device in devices)}
    return {**settings, "NCCL_IB_DISABLE": "1"} if facts.rdma else settings


def cluster_network(facts: Facts, interface: str | None) -> tuple[RdmaDevice, ...]:
    """The devices on OCI's cluster network: they have an address, and do not belong to the interface of TCP.

    Bare metal has more ports than are in use: ports without an address lead nowhere.
    """
    return tuple(device for device in _other_devices(facts, interface) if device.addressed)


def joins_cluster_network(facts: Facts, interface: str | None) -> bool:
    """Return whether OCI puts nodes of this kind on a cluster network.

    The cloud's agent then gives its devices their addresses, minutes after the boot; a machine outside a cluster
    network never gets any.
    """
    return has_rdma_gpus(facts) and bool(_other_devices(facts, interface))


def has_rdma_gpus(facts: Facts) -> bool:
    """Return whether the node is one of OCI's with GPUs that OCI puts on a cluster network."""
    return facts.cloud == "oci" and any(part in _gpu(facts) for part, _ in OCI_RDMA)


def _other_devices(facts: Facts, interface: str | None) -> tuple[RdmaDevice, ...]:
    """The RDMA devices other than that of the interface which TCP goes over."""
    return tuple(device for device in facts.rdma if interface not in device.interfaces)


def _gpu(facts: Facts) -> str:
    return str(facts.gpus[0].get("name")) if facts.gpus else ""
