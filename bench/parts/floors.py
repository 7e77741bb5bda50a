"""Compute a training step's minimum time on a device, for its arithmetic and for its memory traffic.

Standard library only. Each floor has two values, with the data sheet's rates and with rates measured on the device (a
large product of matrices, a large copy); the larger of arithmetic and memory is the floor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train.reporting.gpu_peaks import peaks_of

ADAM_BYTES = 40
"""Bytes that a step moves for each weight in fp32: the weight for forward, backward and update, the gradient written
and read, two states of Adam read and written, the weight written."""
ACTIVATION_MOVES = 5
"""Accesses to each output of a convolution or linear layer: written, read by the next layer, read again in the
backward pass, and its gradient written and read. Operations between two such layers are fused, and caches are too
small."""
ACTIVATION_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A network's cost, independent of the device."""

    flop_per_image: float
    """Operations of forward and backward pass."""
    activations_per_image: float
    """Number of outputs of its convolutions and linear layers."""
    parameters: int

    def bytes_of(self, batch_size: int, precision: str) -> float:
        """Return the minimum number of bytes that a step moves."""
        activations = self.activations_per_image * batch_size * ACTIVATION_BYTES[precision]
        return self.parameters * ADAM_BYTES + activations * ACTIVATION_MOVES


def step_floor(
    cost: Cost, batch_size: int, precision: str, *, tflops: float | None, gb_s: float | None
) -> dict[str, float | None]:
    """Return milliseconds of a step for arithmetic, for memory, and the larger of the two; `None`: not known."""
    compute = cost.flop_per_image * batch_size / (tflops * 1e12) * 1e3 if tflops else None
    memory = cost.bytes_of(batch_size, precision) / (gb_s * 1e9) * 1e3 if gb_s else None
    floor = max(compute, memory) if compute is not None and memory is not None else None
    return {"compute_ms": compute, "memory_ms": memory, "floor_ms": floor}


def floors(
    cost: Cost, batch_size: int, precision: str, *, name: str, measured: Mapping[str, Any]
) -> dict[str, dict[str, float | None]]:
    """Return the floors by the data sheet of the device `name`, and by its `measured` rates.

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
