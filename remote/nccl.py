"""What NCCL must be told about a node's network. Pure: facts in, variables out.

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
)
"""Part of the GPU's name → what OCI's cluster networks (RoCE v2) need. Source: oracle-quickstart/oci-hpc."""
OTHER_OCI_RDMA: Mapping[str, str] = _CLUSTER_NETWORK

EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}
"""For NCCL's libfabric plugin, which AWS's images have; the second is needed on P4d and the default on later ones."""


def variables(facts: Facts, *, master_addr: str, nodes: int) -> dict[str, str]:
    """Variables for every process of a node. `nodes`: how many take part in the run."""
    interface = facts.interfaces.get(master_addr)
    if interface is None:
        return {}
    # The exact form: a plain `ens3` would take ens3f0 as well. gloo has the exact form only.
    found = {
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "NCCL_SOCKET_FAMILY": "AF_INET6" if ":" in master_addr else "AF_INET",
        "GLOO_SOCKET_IFNAME": interface,
    }
    if nodes == 1 or not facts.gpus:
        return found
    if any(device.driver == "efa" for device in facts.rdma):
        return {**found, **EFA}
    if facts.cloud not in TUNES_ITSELF:
        found |= SOCKETS
    return {**found, **_oci_rdma(facts, interface)} if facts.cloud == "oci" else found


def _oci_rdma(facts: Facts, interface: str) -> dict[str, str]:
    """OCI's cluster network is a network of its own beside the VCN, which carries no RDMA."""
    devices = cluster_network(facts.rdma, interface)
    if devices:
        gpu = str(facts.gpus[0].get("name"))
        tuned = next((values for part, values in OCI_RDMA if part in gpu), OTHER_OCI_RDMA)
        return {**tuned, "NCCL_IB_HCA": "=" + ",".join(device.name for device in devices)}
    return {"NCCL_IB_DISABLE": "1"} if facts.rdma else {}


def cluster_network(devices: tuple[RdmaDevice, ...], interface: str) -> tuple[RdmaDevice, ...]:
    """The devices that have an address and are not those of the interface which TCP goes over.

    Bare metal has more ports than are in use: those without an address lead nowhere.
    """
    return tuple(device for device in devices if device.addressed and interface not in device.interfaces)
