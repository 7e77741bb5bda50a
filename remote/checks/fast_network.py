"""Findings on OCI's RDMA network and on AWS's EFA: NCCL uses TCP in their place, without an error."""

from collections.abc import Collection, Mapping

from remote.facts import Facts
from remote.findings import Finding, not_the_first
from remote.launchers import nccl

OCI_RDMA_IMAGE = "marketplace:Oracle Linux - GPU Cluster Networking Image"
"""Image for RDMA networks of OCI, as `--image` takes it."""
RDMA_GPUS = 8
"""GPUs of each machine that OCI puts on an RDMA network."""
PLUGIN_VARIABLES = frozenset({"LD_LIBRARY_PATH", "NCCL_NET_PLUGIN"})
"""Variables that tell NCCL where its plug-in is."""

_LOOK_AGAIN = (
    "wait some minutes, then look again: the cloud's agent gives RDMA devices their addresses "
    "(gpuctl exec -- ip -brief -4 addr; gpuctl exec -- sudo journalctl -u '*oracle-cloud-agent*')"
)
_TAKE_IMAGE = (
    "take Oracle's image for it, the default for these shapes: only with OFED, wpa_supplicant and Oracle's packages, "
    "which it has, machines join the RDMA network (gpuctl down, then "
    f"gpuctl up --image '{OCI_RDMA_IMAGE}'). On that image, the cloud's agent tells why: "
    "gpuctl exec -- sudo journalctl -u '*oracle-cloud-agent*'"
)


def findings(facts: Mapping[str, Facts], master_addr: str, env_names: Collection[str]) -> list[Finding]:
    """Return what keeps NCCL from the nodes' fast networks. `env_names`: variables that the user sets for ranks."""
    return [*_oci_rdma(facts, master_addr), *_efa(facts, env_names)]


def _oci_rdma(facts: Mapping[str, Facts], master_addr: str) -> list[Finding]:
    """Return nodes whose usable RDMA devices differ from the first node's, or are all missing."""
    ways = {name: fact.interfaces.get(master_addr) for name, fact in facts.items()}
    usable = {
        name: str(len(nccl.cluster_network(fact, ways[name])))
        for name, fact in facts.items()
        if fact.cloud == "oci" and fact.gpus
    }
    different = not_the_first(
        usable, "the number of RDMA devices that can be used is", _LOOK_AGAIN, fatal=True
    )
    if different:
        return different
    unusable = {
        name: _rdma_problem(fact, ways[name]) for name, fact in facts.items() if usable.get(name) == "0"
    }
    return [
        Finding(node=name, problem=f"{problem}: the run goes over TCP", fix=_TAKE_IMAGE, fatal=False)
        for name, problem in unusable.items()
        if problem
    ]


def _rdma_problem(fact: Facts, interface: str | None) -> str:
    """Return why a node has no usable RDMA device; empty: its GPUs need no RDMA network."""
    if nccl.joins_cluster_network(fact, interface):
        return "it has RDMA devices and none can be used, as none has an address"
    if nccl.has_rdma_gpus(fact) and len(fact.gpus) == RDMA_GPUS:
        return "it has no RDMA devices, which machines with these GPUs have on OCI"
    return ""


def _efa(facts: Mapping[str, Facts], env_names: Collection[str]) -> list[Finding]:
    """Return nodes with EFA devices that NCCL will not use."""
    return [
        Finding(node=name, problem=f"{problem}: NCCL uses TCP sockets, not EFA", fix=fix, fatal=False)
        for name, fact in facts.items()
        if fact.gpus
        for problem, fix in _efa_problem(fact, env_names)
    ]


def _efa_problem(fact: Facts, env_names: Collection[str]) -> list[tuple[str, str]]:
    """Return what NCCL lacks for EFA, and the fix; empty: it lacks nothing, or the node has no EFA."""
    if fact.efa is None:
        return []
    missing = [
        name
        for name, installed in (("aws-ofi-nccl", fact.efa.plugin), ("libfabric", fact.efa.libfabric))
        if not installed
    ]
    if missing and not PLUGIN_VARIABLES & set(env_names):
        fix = (
            "take an image that has them, such as AWS's Deep Learning image (the default of gpuctl up), or run AWS's "
            "EFA installer there"
        )
        return [(f"it has EFA devices and lacks {' and '.join(missing)}", fix)]
    if fact.efa.plugin and not fact.efa.loadable and not PLUGIN_VARIABLES & set(env_names):
        folder = fact.efa.plugin.rpartition("/")[0]
        return [
            (
                f"it has EFA devices, and NCCL's plug-in is in {folder}, where the loader does not look",
                f"add --env LD_LIBRARY_PATH={folder}, or name the folder in /etc/ld.so.conf.d there and run ldconfig",
            )
        ]
    return []
