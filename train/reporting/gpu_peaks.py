"""Dense peak rates of GPUs, from their data sheets. Standard library only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """A GPU's rates in NVIDIA's data sheet, without sparsity. `None`: not supported, or not published."""

    tflops: Mapping[str, float | None]
    """Of a precision: 10**12 operations a second."""
    gb_s: float
    """Memory: 10**9 bytes a second."""
    link_gb_s: float
    """To another GPU of its machine, in each direction: NVLink, or PCIe: 10**9 bytes a second."""


def _peaks(
    fp32: float, tf32: float | None, half: float, gb_s: float, link_gb_s: float, *, bf16: bool = True
) -> Peaks:
    tflops = {"fp32": fp32, "tf32": tf32, "bf16": half if bf16 else None, "fp16": half}
    return Peaks(tflops=tflops, gb_s=gb_s, link_gb_s=link_gb_s)


PEAKS: tuple[tuple[tuple[str, ...], Peaks], ...] = (
    (("GB300",), _peaks(80, 1250, 2500, 8000, 900)),
    (("GB200",), _peaks(80, 1250, 2500, 8000, 900)),
    (("B300",), _peaks(75, 1125, 2250, 8000, 900)),
    (("B200",), _peaks(75, 1125, 2250, 8000, 900)),
    (("GH200",), _peaks(67, 494.7, 989.4, 4000, 450)),
    (("H200", "NVL"), _peaks(60, 418, 836, 4800, 450)),
    (("H200",), _peaks(67, 494.7, 989.4, 4800, 450)),
    (("H100", "NVL"), _peaks(60, 417.5, 835, 3900, 300)),
    (("H100", "PCIE"), _peaks(51, 378, 756, 2000, 64)),
    (("H100",), _peaks(67, 494.7, 989.4, 3350, 450)),
    (("A100", "80GB", "PCIE"), _peaks(19.5, 156, 312, 1935, 32)),
    (("A100", "80GB"), _peaks(19.5, 156, 312, 2039, 300)),
    (("A100",), _peaks(19.5, 156, 312, 1555, 300)),
    (("A10G",), _peaks(31.5, 35, 70, 600, 32)),
    (("A10",), _peaks(31.2, 62.5, 125, 600, 32)),
    (("L40S",), _peaks(91.6, 183, 362, 864, 32)),
    (("L4",), _peaks(30.3, 60, 121, 300, 32)),
    (("V100", "PCIE"), _peaks(14, None, 112, 900, 16, bf16=False)),
    (("V100",), _peaks(15.7, None, 125, 900, 150, bf16=False)),
    (("T4",), _peaks(8.1, None, 65, 320, 16, bf16=False)),
)
"""By words of the GPU's name in nvidia-smi and torch. The first row whose words all occur applies.

Since Ampere, data sheets give tensor cores with sparsity (halved here), and links in both directions together. Whole
systems: HGX B200 and B300 (8 GPUs), GB200 and GB300 NVL72 (72). A10G: AWS's rates at the GPU's clock. GH200 is an
H100 with 96 GB of HBM3 at 4 TB/s; its name, `NVIDIA GH200 480GB`, has the host's memory. V100 for PCIe:
https://www.io-tech.fi/uutinen/nvidia-esitteli-tesla-v100-pci-express-kiihdyttimen-tieteelliseen-laskentaan/"""


def peaks_of(name: str) -> Peaks | None:
    """Return a GPU's data sheet by its name (`NVIDIA H100 80GB HBM3`).

    `None`: unknown GPU, or a part of a GPU (MIG), which has no data sheet.
    """
    words = set(name.upper().replace("-", " ").split())
    if "MIG" in words:
        return None
    return next((peaks for keywords, peaks in PEAKS if words.issuperset(keywords)), None)


def peak_tflops(names: Iterable[str], precision: str) -> float | None:
    """Return the sum of the GPUs' peak rates. `None`: unknown for at least one."""
    sheets = [peaks_of(name) for name in names]
    known = [sheet.tflops.get(precision) for sheet in sheets if sheet is not None]
    rates = [rate for rate in known if rate is not None]
    return sum(rates) if len(rates) == len(sheets) else None
