"""What a section of `bench/gpu.py` gets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.parts.gpu_plan import Sizes
from bench.parts.sections import Tell


@dataclass(frozen=True, kw_only=True)
class Work:
    """The device of a section, its sizes and its time."""

    device: torch.device
    sizes: Sizes
    tell: Tell
    until: float
    """Monotonic: it should come to its end by then."""
    folder: Path


Run = Callable[[Work], None]
