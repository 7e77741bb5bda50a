"""The device, the sizes and the time of a section of `bench/gpu.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.parts.gpu_plan import Sizes
from bench.parts.sections import Tell


@dataclass(frozen=True, kw_only=True)
class Work:
    """Arguments of a section."""

    device: torch.device
    sizes: Sizes
    tell: Tell
    until: float
    """Monotonic: the section should end by then."""
    folder: Path


Run = Callable[[Work], None]
