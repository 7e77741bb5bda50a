"""What a training step takes at the least on a device: for its arithmetic, and for its way through memory.

Standard library alone. A floor is counted twice, with the data sheet's rates and with those of a large product of
matrices and a large copy that were measured on the very device; the larger of arithmetic and memory is the floor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train.reporting.gpu_peaks import peaks_of

ADAM_BYTES = 40
"""That a step has to move for each weight in fp32: the weight for forward, backward and update, the gradient written
and read, two states of Adam read and written, the weight written."""
ACTIVATION_MOVES = 5
"""Of what a convolution or linear layer gives: written, read by the next one, read again in the backward pass, and
its gradient written and read. What is between two such layers is computed on the way, and caches are too small."""
ACTIVATION_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


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
    """Milliseconds of a step for the arithmetic, for the memory, and the larger of the two; `None`: not known."""
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
