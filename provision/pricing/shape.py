"""A kind of machine, as its cloud's catalog has it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of machine."""

    name: str
    provider: str
    gpus: int
    gpu: str
    """The GPU's name, such as `A10`."""
    gpu_memory_gb: int
    """Of one GPU."""
    network: str
    """Gbps of the network that TCP goes over, as the vendor writes it: `2 x 50`. AWS: what lasts; its smaller types
    can burst above that. Empty: not known."""
    rdma: str = ""
    """Gbps of OCI's separate RDMA network, `16 x 200`; empty where there is none."""
    efa: int = 0
    """AWS: how many EFA interfaces it can have; they share the bandwidth of `network`."""
    placement_group: bool = False
    """AWS: whether a cluster placement group takes it."""
    bare_metal: bool = False
    compute_cluster: bool = False
    """OCI: whether its RDMA network works, in a compute cluster."""
    not_launched: str = ""
    """Reason why gpuctl launches no machine of this shape; empty: it does."""
    last_driver: str | None = None
    """Last branch of NVIDIA's driver that runs its GPUs. None: the newest does."""
    usd_per_hour: float | None
    """List price of the whole machine, on demand. None: not known."""
    priced_at: str
    """When that was the price: `2026-07`."""
    price_source: str = "shipped with gpuctl"
    """Who says so."""

    @property
    def network_gbps(self) -> float:
        """Gbps of `network`, all interfaces together."""
        return _gbps(self.network)

    @property
    def rdma_gbps(self) -> float:
        """Gbps of `rdma`, all interfaces together; 0 where there is none."""
        return _gbps(self.rdma)


def _gbps(network: str) -> float:
    """`2 x 50` → 100."""
    count, _, each = network.rpartition(" x ")
    return float(count or 1) * float(each or 0)
