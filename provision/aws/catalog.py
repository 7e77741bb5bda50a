"""AWS's instance types with GPUs, and its list prices in us-east-1."""

from collections.abc import Iterable

from inventories.specs.gpu_driver import LAST_FOR_KEPLER, LAST_FOR_VOLTA
from provision.clouds import Shape

PRICED_AT = "2026-07"
"""When the prices of instance types were looked up."""
PRICE_REGION = "us-east-1"
"""Where the prices below hold; others do in other regions."""

GP3_USD_PER_GB_MONTH = 0.08
"""gp3 as it comes (3,000 IOPS, 125 MB/s). https://aws.amazon.com/ebs/pricing/, 2026-11."""

ADDRESS_HOURLY_USD = 0.005
"""A public IPv4 address, in every region since 2024-02. https://aws.amazon.com/vpc/pricing/, 2026-11."""

NAT_HOURLY_USD = 0.045
"""A NAT gateway without its address and its traffic. https://aws.amazon.com/vpc/pricing/, 2026-11."""

# g7e: networks from two public documents that agree, EFA interfaces from AWS's own table in
# https://github.com/aws/sagemaker-hyperpod-cli (src/sagemaker/hyperpod/training/constants.py); prices are not known.
# Every type here is taken by a cluster placement group: DescribeInstanceTypes lists the strategy `cluster`.
_ROWS: tuple[tuple[str, int, str, int, str, int, float | None], ...] = (
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
    ("g7e.2xlarge", 1, "RTXPRO", 96, "50", 0, None),
    ("g7e.12xlarge", 2, "RTXPRO", 96, "400", 1, None),
    ("g7e.24xlarge", 4, "RTXPRO", 96, "800", 2, None),
    ("g7e.48xlarge", 8, "RTXPRO", 96, "1600", 4, None),
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

_LAST_DRIVER = {"K80": LAST_FOR_KEPLER, "M60": LAST_FOR_VOLTA, "P100": LAST_FOR_VOLTA, "V100": LAST_FOR_VOLTA}


def last_driver_branch(gpus: Iterable[str]) -> str | None:
    """Return the last driver branch that runs GPUs of these names. `None`: the newest does."""
    return min((_LAST_DRIVER[gpu] for gpu in gpus if gpu in _LAST_DRIVER), default=None)


SHAPES = tuple(
    Shape(
        name=name,
        provider="aws",
        gpus=gpus,
        gpu=gpu,
        gpu_memory_gb=memory_gb,
        network=network,
        efa=efa,
        placement_group=True,
        bare_metal=".metal" in name,
        last_driver=last_driver_branch([gpu]),
        usd_per_hour=usd,
        priced_at=PRICED_AT,
    )
    for name, gpus, gpu, memory_gb, network, efa, usd in _ROWS
)
