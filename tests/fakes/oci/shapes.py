"""The shapes that the region offers, as the provider's documentation describes them.

VM.GPU.B1.1 is invented: it stands for a shape newer than any catalog.
"""

from dataclasses import dataclass
from typing import Any

from tests.fakes.oci.account import DOMAINS


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A shape; `domains` are the numbers of the availability domains that have it."""

    name: str
    gpus: int
    gpu: str
    ocpus: int
    memory_gb: int
    gbps: float
    rdma_ports: int
    rdma_gbps: int
    disks: int
    disks_tb: float
    domains: tuple[int, ...]
    limit: str
    """The service limit that counts it."""
    arch: str

    @property
    def bare_metal(self) -> bool:
        """Return whether the shape is bare metal, without other customers."""
        return self.name.startswith("BM.")

    @property
    def flexible(self) -> bool:
        """Return whether a launch sets the number of OCPUs and the memory."""
        return self.name.endswith(".Flex")

    @property
    def counts(self) -> int:
        """Return one machine's share of its limit: its GPUs, or 1."""
        return self.gpus or 1

    def offered_in(self, domain: str) -> bool:
        """Return whether an availability domain, by its name, offers the shape."""
        return domain in DOMAINS and DOMAINS.index(domain) + 1 in self.domains

    @property
    def view(self) -> dict[str, Any]:
        """Return the view of ListShapes."""
        return {"shape": self.name, **self.numbers, **self._options} | {
            "networkPorts": 1,
            "rdmaPorts": self.rdma_ports,
            "rdmaBandwidthInGbps": self.rdma_gbps,
            "isLiveMigrationSupported": False,
            "isBilledForStoppedInstance": self._billed_when_stopped,
            "billingType": "ALWAYS_FREE" if self.name.endswith(".Micro") else "PAID",
            # The Ampere shapes list the limit of memory before the limit of OCPUs.
            "quotaNames": [self.limit.replace("-core-", "-memory-"), self.limit]
            if self.flexible
            else [self.limit],
            "isFlexible": self.flexible,
        }

    @property
    def numbers(self) -> dict[str, Any]:
        """Return the fields common to a shape and an instance's configuration."""
        shown: dict[str, Any] = {
            "processorDescription": "3.7 GHz AMD EPYC\u2122"
            if self.arch == "x86_64"
            else "NVIDIA Grace\u2122",
            "ocpus": float(self.ocpus),
            "memoryInGBs": float(self.memory_gb),
            "networkingBandwidthInGbps": self.gbps,
            "maxVnicAttachments": 256 if self.bare_metal else 2,
            "gpus": self.gpus,
            "localDisks": self.disks,
        }
        if self.gpus:
            shown["gpuDescription"] = f"NVIDIA\u00ae {self.gpu.replace('-', ' ')}"
        if self.disks:
            shown["localDisksTotalSizeInGBs"] = self.disks_tb * 1000
            shown["localDiskDescription"] = "Locally-attached NVMe SSD"
        return shown

    @property
    def _billed_when_stopped(self) -> bool:
        """Return whether stopped machines are billed: all GPU shapes except the virtual A10s, and dense disks."""
        return self.disks > 0 or (self.gpus > 0 and not self.name.startswith("VM.GPU.A10."))

    @property
    def _options(self) -> dict[str, Any]:
        if not self.flexible:
            return {}
        return {
            "ocpuOptions": {"min": 1.0, "max": 64.0},
            "memoryOptions": {
                "minInGBs": 1.0,
                "maxInGBs": 1024.0,
                "defaultPerOcpuInGBs": 16.0,
                "minPerOcpuInGBs": 1.0,
                "maxPerOcpuInGBs": 64.0,
            },
        }


_TABLE = """
    name                  GPUs  GPU         OCPUs  GB    Gbps  RDMA    disks   domains  limit
    VM.Standard.E4.Flex   0     -           1      16    1     0x0     0x0     123      standard-e4-core-count
    VM.Standard.E2.1.Micro 0    -           1      1     0.48  0x0     0x0     3        standard-e2-micro-core-count
    VM.GPU2.1             1     P100        12     72    8     0x0     0x0     12       gpu2-count
    VM.GPU3.1             1     V100        6      90    4     0x0     0x0     123      gpu3-count
    VM.GPU3.2             2     V100        12     180   8     0x0     0x0     123      gpu3-count
    VM.GPU3.4             4     V100        24     360   24.6  0x0     0x0     123      gpu3-count
    VM.GPU.A10.1          1     A10         15     240   24    0x0     0x0     123      gpu-a10-count
    VM.GPU.A10.2          2     A10         30     480   48    0x0     0x0     123      gpu-a10-count
    VM.GPU.B1.1           1     B1          16     256   50    0x0     0x0     123      gpu-b1-count
    BM.GPU.A10.4          4     A10         64     1024  100   0x0     2x3.84  123      gpu-a10-count
    BM.GPU3.8             8     V100        52     768   50    0x0     0x0     123      gpu3-count
    BM.GPU4.8             8     A100-40GB   64     2048  50    8x200   4x6.8   12       gpu4-count
    BM.GPU.A100-v2.8      8     A100-80GB   128    2048  100   16x100  4x6.8   123      gpu-a100-v2-count
    BM.GPU.L40S.4         4     L40S        112    1024  200   0x0     2x3.84  123      gpu-l40s-count
    BM.GPU.H100.8         8     H100-80GB   112    2048  100   16x200  16x3.84 123      gpu-h100-count
    BM.GPU.H200.8         8     H200-141GB  112    3072  200   8x400   8x3.84  123      gpu-h200-count
    BM.GPU.B200.8         8     B200-180GB  128    4096  400   8x400   8x3.84  1        gpu-b200-count
    BM.GPU.GB200.4        4     GB200-192GB 144    960   400   4x400   4x7.68  1        gpu-gb200-count
    BM.GPU.GB300.4        4     GB300-278GB 144    1024  400   4x800   4x7.68  -        gpu-gb300-count
"""


def _read(row: str) -> Shape:
    name, gpus, gpu, ocpus, memory, gbps, rdma, disks, domains, limit = row.split()
    ports, rdma_gbps = rdma.split("x")
    number, tb = disks.split("x")
    return Shape(
        name=name,
        gpus=int(gpus),
        gpu=gpu,
        ocpus=int(ocpus),
        memory_gb=int(memory),
        gbps=float(gbps),
        rdma_ports=int(ports),
        rdma_gbps=int(rdma_gbps),
        disks=int(number),
        disks_tb=int(number) * float(tb),
        domains=tuple(int(digit) for digit in domains if digit != "-"),
        limit=limit,
        arch="aarch64" if gpu.startswith("GB") else "x86_64",
    )


SHAPES = {shape.name: shape for shape in map(_read, _TABLE.strip().splitlines()[1:])}
