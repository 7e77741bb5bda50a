"""The machines of an advice, with their GPUs and links."""

from dataclasses import dataclass
from typing import Literal

from train.options import Precision
from train.reporting.gpu_peaks import Peaks, peaks_of


@dataclass(frozen=True, kw_only=True)
class Machines:
    """A number of machines of one shape."""

    shape: str
    count: int
    gpus: int
    """Of one machine: as many ranks."""
    gpu: str
    gpu_memory_gb: float
    between_gb_s: float | None
    """The vendor's figure for the network between them. `None`: not known."""
    hourly_usd: float | None
    """Of all of them together. `None`: not known."""
    setup_s: float = 0.0
    """From the order of a machine to the first step of a job on it."""
    min_billed_s: float = 0.0
    """The shortest time that a machine is billed for."""
    peaks: Peaks | None = None
    """The GPU's rates. `None`: the data sheet's."""
    backend: Literal["nccl", "gloo"] = "nccl"
    """The communication library of the ranks; gloo for CPUs."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.count * self.gpus

    @property
    def _peaks(self) -> Peaks | None:
        return self.peaks or peaks_of(f"{self.gpu} {self.gpu_memory_gb:.0f}GB")

    def peak_flops(self, precision: Precision) -> float | None:
        """Return the operations a second of one GPU by its data sheet. `None`: not known, or it can't."""
        tflops = self._peaks.tflops.get(precision) if self._peaks else None
        return None if tflops is None else tflops * 1e12

    @property
    def usual_precisions(self) -> tuple[Precision, ...]:
        """Return the precisions to compare for a job without --precision.

        Ampere and newer GPUs have bf16. V100 and T4 have fp16 only, which not every strategy supports. A GPU without
        a data sheet is unknown.
        """
        known = self._peaks.tflops if self._peaks else {}
        if known.get("bf16"):
            return ("bf16",)
        return ("fp16", "fp32") if known.get("fp16") else ("fp32",)

    @property
    def memory_bytes_s(self) -> float | None:
        """Bytes a second of a GPU's memory, by its data sheet. `None`: not known."""
        return self._peaks.gb_s * 1e9 if self._peaks else None

    @property
    def within_bytes_s(self) -> float | None:
        """Bytes a second between GPUs of one machine, by the vendor's figure. `None`: not known."""
        return self._peaks.link_gb_s * 1e9 if self._peaks else None

    @property
    def between_bytes_s(self) -> float | None:
        """Bytes a second of a machine's network, by the vendor's figure. `None`: not known."""
        return self.between_gb_s * 1e9 if self.between_gb_s else None
