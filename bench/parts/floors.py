"""What a training step takes at the least on a device: for its arithmetic, and for its way through memory.

Standard library alone. A floor is counted twice, with the data sheet's rates and with those of a large product of
matrices and a large copy that were measured on the very device; the larger of arithmetic and memory is the floor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ADAM_BYTES = 40
"""That a step has to move for each weight in fp32: the weight for forward, backward and update, the gradient written
and read, two states of Adam read and written, the weight written."""
ACTIVATION_MOVES = 5
"""Of what a convolution or linear layer gives: written, read by the next one, read again in the backward pass, and
its gradient written and read. What is between two such layers is computed on the way, and caches are too small."""
ACTIVATION_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """A GPU's rates by its data sheet, without sparsity. None: it can't."""

    tflops: Mapping[str, float | None]
    """Of a precision: 10**12 operations a second."""
    gb_s: float
    """Memory: 10**9 bytes a second."""


def _peaks(fp32: float, tf32: float | None, half: float, gb_s: float, *, bf16: bool = True) -> Peaks:
    return Peaks(tflops={"fp32": fp32, "tf32": tf32, "bf16": half if bf16 else None, "fp16": half}, gb_s=gb_s)


PEAKS: tuple[tuple[tuple[str, ...], Peaks], ...] = (
    (("B200",), _peaks(75, 1100, 2250, 8000)),
    (("H200", "NVL"), _peaks(60, 418, 836, 4800)),
    (("H200",), _peaks(67, 494.7, 989.4, 4800)),
    (("H100", "NVL"), _peaks(60, 417.5, 835, 3900)),
    (("H100", "PCIE"), _peaks(51, 378, 756, 2000)),
    (("H100",), _peaks(67, 494.7, 989.4, 3350)),
    (("A100", "80GB", "PCIE"), _peaks(19.5, 156, 312, 1935)),
    (("A100", "80GB"), _peaks(19.5, 156, 312, 2039)),
    (("A100",), _peaks(19.5, 156, 312, 1555)),
    (("A10G",), _peaks(31.5, 35, 70, 600)),
    (("A10",), _peaks(31.2, 62.5, 125, 600)),
    (("L40S",), _peaks(91.6, 183, 362, 864)),
    (("L4",), _peaks(30.3, 60, 121, 300)),
    (("V100",), _peaks(15.7, None, 125, 900, bf16=False)),
    (("T4",), _peaks(8.1, None, 65, 320, bf16=False)),
)
"""By words of the name that nvidia-smi gives; the first row whose words are all there counts."""


def peaks_of(name: str) -> Peaks | None:
    """A GPU's data sheet by its name (`NVIDIA H100 80GB HBM3`). None: it is not known here."""
    words = set(name.upper().replace("-", " ").split())
    return next((peaks for wanted, peaks in PEAKS if words.issuperset(wanted)), None)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the network asks of a device, whatever the device."""

    flop_per_image: float
    """Operations of forward and backward pass."""
    activations_per_image: float
    """Numbers that its convolutions and linear layers give."""
    parameters: int

    def bytes_of(self, batch_size: int, precision: str) -> float:
        """That a step moves at the least."""
        activations = self.activations_per_image * batch_size * ACTIVATION_BYTES[precision]
        return self.parameters * ADAM_BYTES + activations * ACTIVATION_MOVES


def step_floor(
    cost: Cost, batch_size: int, precision: str, *, tflops: float | None, gb_s: float | None
) -> dict[str, float | None]:
    """Milliseconds of a step for the arithmetic, for the memory, and the larger of the two; None: not known."""
    compute = cost.flop_per_image * batch_size / (tflops * 1e12) * 1e3 if tflops else None
    memory = cost.bytes_of(batch_size, precision) / (gb_s * 1e9) * 1e3 if gb_s else None
    floor = max(compute, memory) if compute is not None and memory is not None else None
    return {"compute_ms": compute, "memory_ms": memory, "floor_ms": floor}


def floors(
    cost: Cost, batch_size: int, precision: str, *, name: str, measured: Mapping[str, Any]
) -> dict[str, dict[str, float | None]]:
    """Those by the data sheet of the device of that name, and those by what was `measured` on it.

    `measured`: `matmul_tflops` by precision, and `copy_gb_s`.
    """
    sheet = peaks_of(name)
    tflops = measured.get("matmul_tflops") or {}
    return {
        "data_sheet": step_floor(
            cost,
            batch_size,
            precision,
            tflops=sheet.tflops[precision] if sheet else None,
            gb_s=sheet.gb_s if sheet else None,
        ),
        "measured": step_floor(
            cost, batch_size, precision, tflops=tflops.get(precision), gb_s=measured.get("copy_gb_s")
        ),
    }
