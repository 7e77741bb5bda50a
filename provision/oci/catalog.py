"""OCI's shapes, and its list prices: Oracle's public list has no regions."""

import re

from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import LAST_FOR_VOLTA
from provision.clouds import Shape

PRICED_AT = "2026-07"
"""When the prices of shapes were looked up."""

STORAGE_USD_PER_GB_MONTH = 0.0255
PERFORMANCE_USD_PER_GB_MONTH = 10 * 0.0017
"""Parts B91961 and B91962 of Oracle's price list. Boot volumes are "Balanced": 10 performance units a GB,
https://www.oracle.com/cloud/storage/block-volumes/pricing/, 2026-11."""

SPOT_SHARE = 0.5
"""Preemptible machines cost half the price of others, whatever the shape and the region.

https://blogs.oracle.com/cloud-infrastructure/announcing-ga-of-oracle-preemptible-instances-vm-shapes, 2026-11."""

MEMORY_CLUSTER_ONLY = (
    "OCI starts it only in GPU memory clusters, which need dedicated capacity, and its processors are ARM"
)
"""Reason why gpuctl launches no GB200 and no GB300.
https://docs.oracle.com/en-us/iaas/Content/Compute/Concepts/gpu-memory-fabric.htm."""

_MEMORY_CLUSTER_SHAPE = re.compile(r"BM\.GPU\.GB[0-9].*")
_PASCAL_OR_VOLTA_SHAPE = re.compile(r"(VM|BM)\.GPU[23]\..*")
_PAUSING_SHAPE = re.compile(r"(VM|BM)\.Standard.*|VM\.Optimized.*|VM\.GPU\.A10\..*")
"""Shapes whose bill pauses while a machine is stopped by the API; the bill of all others continues.
https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/resource-billing-stopped-instances.htm."""

_PRICED_LATER = {"BM.GPU.B300.8": "2026-09", "BM.GPU.RTXPRO.8": "2026-08"}

# B300: networks from Oracle's own GPU quick start, price of part B112237 of Oracle's price list. RTX PRO 6000: part
# B112613; its networks are not known.
_ROWS: tuple[tuple[str, int, str, int, str, str, float | None], ...] = (
    # name, GPUs, GPU, GB of each, Gbps (empty: not known), Gbps of RDMA, USD an hour
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
    ("BM.GPU.B300.8", 8, "B300", 268, "100", "16 x 400", 120.0),
    ("BM.GPU.RTXPRO.8", 8, "RTXPRO", 96, "", "", 36.0),
    ("BM.GPU.GB200.4", 4, "GB200", 192, "2 x 200", "4 x 400", 64.0),
    ("BM.GPU.GB300.4", 4, "GB300", 278, "2 x 200", "4 x 800", 72.0),
)


def not_launched(name: str) -> str:
    """Return the reason why gpuctl launches no machine of the shape; empty: it does."""
    return MEMORY_CLUSTER_ONLY if _MEMORY_CLUSTER_SHAPE.fullmatch(name) else ""


def last_driver_branch(name: str) -> str | None:
    """Return the last driver branch that runs the shape's GPUs. `None`: the newest does."""
    return LAST_FOR_VOLTA if _PASCAL_OR_VOLTA_SHAPE.fullmatch(name) else None


def bill_continues_when_stopped(name: str) -> bool:
    """Return whether OCI bills a stopped machine of the shape, by the shape's name."""
    return not _PAUSING_SHAPE.fullmatch(name)


def may_have_rdma(name: str) -> bool:
    """Return whether machines of the shape may join an RDMA network; also True if gpuctl does not know."""
    row = next((row for row in _ROWS if row[0] == name), None)
    if row is None:
        return name.startswith("BM.GPU")
    *_, network, rdma, _usd = row
    return bool(rdma) or not network


SHAPES = tuple(
    Shape(
        name=name,
        provider="oci",
        gpus=gpus,
        gpu=gpu,
        gpu_memory_gb=memory_gb,
        network=network,
        rdma=rdma,
        bare_metal=name.startswith("BM."),
        compute_cluster=bool(rdma),
        not_launched=not_launched(name),
        last_driver=last_driver_branch(name),
        usd_per_hour=usd,
        priced_at=_PRICED_LATER.get(name, PRICED_AT),
    )
    for name, gpus, gpu, memory_gb, network, rdma, usd in _ROWS
)


def hourly_usd(name: str, *, spot: bool) -> float | None:
    """Return the list price of one machine. `None`: not known."""
    price = next((shape.usd_per_hour for shape in SHAPES if shape.name == name), None)
    return price * SPOT_SHARE if spot and price is not None else price


def refuse_not_launched(name: str) -> None:
    """Raise InvalidInput for a shape that gpuctl does not launch."""
    if reason := not_launched(name):
        raise InvalidInput(
            f"{name} is not launched by gpuctl: {reason}. Choose another shape: `gpuctl shapes` lists them."
        )
