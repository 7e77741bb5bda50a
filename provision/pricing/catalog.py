"""The shapes that gpuctl knows, by the names that their clouds give them: GPUs, networks, list prices.

A shape that is not listed here can still be used where its cloud knows it: `provider_by_name` tells from the
name alone whose it would be. Prices that were asked for since are in `provision.pricing.prices`.
"""

import re
from dataclasses import dataclass

from inventories.suggest import nearest

PRICED_AT = "2026-07"
"""When the prices below were looked up."""
PRICE_REGION = "us-east-1"
"""Where AWS's prices below hold. OCI's are the same in every commercial region."""
PRICE_SOURCE = "shipped with gpuctl"


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
    """Gbps of the network that TCP goes over, as the vendor writes it: `2 x 50`."""
    network_gbps: float
    """The same, all interfaces together. AWS: what lasts; its smaller types can burst above that."""
    rdma: str
    """Gbps of OCI's separate RDMA network, `16 x 200`; empty where there is none."""
    rdma_gbps: float
    """The same, all interfaces together; 0 where there is none."""
    efa: int
    """AWS: how many EFA interfaces it can have; they share the bandwidth of `network`."""
    placement_group: bool
    """AWS: whether a cluster placement group takes it."""
    bare_metal: bool
    compute_cluster: bool
    """OCI: whether its RDMA network works, in a compute cluster."""
    usd_per_hour: float | None
    """List price of the whole machine, on demand. None: not known."""
    priced_at: str
    """When that was the price: `2026-07`."""
    price_source: str
    """Who says so."""


_OCI: tuple[tuple[str, int, str, int, str, str, float | None], ...] = (
    # name, GPUs, GPU, GB of each, Gbps, Gbps of RDMA, USD an hour
    ("VM.GPU2.1", 1, "P100", 16, "8", "", 1.275),
    ("VM.GPU3.1", 1, "V100", 16, "4", "", 2.95),
    ("VM.GPU3.2", 2, "V100", 16, "8", "", 5.90),
    ("VM.GPU3.4", 4, "V100", 16, "24.6", "", 11.80),
    ("VM.GPU.A10.1", 1, "A10", 24, "24", "", 2.0),
    ("VM.GPU.A10.2", 2, "A10", 24, "48", "", 4.0),
    ("BM.GPU.A10.4", 4, "A10", 24, "2 x 50", "", 8.0),
    ("BM.GPU3.8", 8, "V100", 16, "2 x 25", "", 23.60),
    ("BM.GPU4.8", 8, "A100", 40, "50", "8 x 200", 24.40),
    ("BM.GPU.A100-v2.8", 8, "A100", 80, "2 x 50", "16 x 100", 32.0),
    ("BM.GPU.L40S.4", 4, "L40S", 48, "200", "800", 14.0),
    ("BM.GPU.H100.8", 8, "H100", 80, "100", "16 x 200", 80.0),
    ("BM.GPU.H200.8", 8, "H200", 141, "200", "8 x 400", 80.0),
    ("BM.GPU.B200.8", 8, "B200", 180, "2 x 200", "8 x 400", 112.0),
    ("BM.GPU.GB200.4", 4, "GB200", 192, "2 x 200", "4 x 400", 64.0),
    ("BM.GPU.GB300.4", 4, "GB300", 278, "2 x 200", "4 x 800", 72.0),
)

# Every type here is taken by a cluster placement group: DescribeInstanceTypes lists the strategy `cluster`.
_AWS: tuple[tuple[str, int, str, int, str, int, float | None], ...] = (
    # name, GPUs, GPU, GB of each, Gbps, EFA interfaces, USD an hour
    ("g4dn.xlarge", 1, "T4", 16, "5", 0, 0.526),
    ("g4dn.12xlarge", 4, "T4", 16, "50", 1, 3.912),
    ("g4dn.metal", 8, "T4", 16, "100", 1, 7.824),
    ("g5.xlarge", 1, "A10G", 24, "2.5", 0, 1.006),
    ("g5.12xlarge", 4, "A10G", 24, "40", 1, 5.672),
    ("g5.48xlarge", 8, "A10G", 24, "100", 1, 16.288),
    ("g6.xlarge", 1, "L4", 24, "2.5", 0, 0.805),
    ("g6.12xlarge", 4, "L4", 24, "40", 1, 4.602),
    ("g6.48xlarge", 8, "L4", 24, "100", 1, 13.350),
    ("g6e.xlarge", 1, "L40S", 48, "2.5", 0, 1.861),
    ("g6e.12xlarge", 4, "L40S", 48, "100", 1, 10.493),
    ("g6e.48xlarge", 8, "L40S", 48, "400", 4, 30.131),
    ("p3.2xlarge", 1, "V100", 16, "2.5", 0, 3.06),
    ("p3.8xlarge", 4, "V100", 16, "10", 0, 12.24),
    ("p3.16xlarge", 8, "V100", 16, "25", 0, 24.48),
    ("p4d.24xlarge", 8, "A100", 40, "400", 4, 21.958),
    ("p4de.24xlarge", 8, "A100", 80, "400", 4, 27.447),
    ("p5.4xlarge", 1, "H100", 80, "100", 1, 6.88),
    ("p5.48xlarge", 8, "H100", 80, "3200", 32, 55.04),
    ("p5en.48xlarge", 8, "H200", 141, "3200", 16, 63.296),
    ("p6-b200.48xlarge", 8, "B200", 180, "3200", 8, 113.93),
    ("p6-b300.48xlarge", 8, "B300", 268, "6400", 16, 142.42),
)


def _gbps(network: str) -> float:
    """`2 x 50` → 100."""
    count, _, each = network.rpartition(" x ")
    return float(count or 1) * float(each or 0)


def _oci(name: str, gpus: int, gpu: str, memory_gb: int, network: str, rdma: str, usd: float | None) -> Shape:
    return Shape(
        name=name,
        provider="oci",
        gpus=gpus,
        gpu=gpu,
        gpu_memory_gb=memory_gb,
        network=network,
        network_gbps=_gbps(network),
        rdma=rdma,
        rdma_gbps=_gbps(rdma),
        efa=0,
        placement_group=False,
        bare_metal=name.startswith("BM."),
        compute_cluster=bool(rdma),
        usd_per_hour=usd,
        priced_at=PRICED_AT,
        price_source=PRICE_SOURCE,
    )


def _aws(name: str, gpus: int, gpu: str, memory_gb: int, network: str, efa: int, usd: float | None) -> Shape:
    return Shape(
        name=name,
        provider="aws",
        gpus=gpus,
        gpu=gpu,
        gpu_memory_gb=memory_gb,
        network=network,
        network_gbps=_gbps(network),
        rdma="",
        rdma_gbps=0.0,
        efa=efa,
        placement_group=True,
        bare_metal=".metal" in name,
        compute_cluster=False,
        usd_per_hour=usd,
        priced_at=PRICED_AT,
        price_source=PRICE_SOURCE,
    )


SHAPES: dict[str, Shape] = {
    shape.name: shape for shape in (*(_oci(*row) for row in _OCI), *(_aws(*row) for row in _AWS))
}
"""By name."""

_OCI_NAME = re.compile(r"(VM|BM)\.[A-Za-z0-9][A-Za-z0-9._-]*")
_AWS_NAME = re.compile(
    r"(?=[a-z0-9-]*[0-9])[a-z][a-z0-9-]*\.(nano|micro|small|medium|large|[0-9]*xlarge|metal(-[0-9]+xl)?)"
)


_NVIDIA_NAME = re.compile(r"(VM|BM)\.GPU(?!\.MI[0-9]).*|(?!g4ad\.)(p|gr?)[0-9].*")
"""Of OCI (whose MI shapes have AMD's GPUs) and of AWS (where g4ad has them)."""


def nvidia_by_name(name: str) -> bool:
    """Whether machines of that shape have NVIDIA GPUs, as far as the name tells."""
    known = SHAPES.get(name)
    return known.gpus > 0 if known else bool(_NVIDIA_NAME.fullmatch(name))


def nearest_shapes(name: str) -> list[str]:
    """The names most like `name`, best first, `local` among them; none where nothing is like it."""
    return nearest(name, ["local", *SHAPES])


def provider_by_name(name: str) -> str | None:
    """Whose shape a name is, or looks like where it is not listed: `oci`, `aws`. None: nobody's.

    That a name looks like one does not mean that there is such a shape: only the cloud knows.
    """
    if name in SHAPES:
        return SHAPES[name].provider
    if _OCI_NAME.fullmatch(name):
        return "oci"
    return "aws" if _AWS_NAME.fullmatch(name) else None
