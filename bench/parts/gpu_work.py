"""The device, the sizes and the time of a section of `bench/gpu.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.parts.gpu_plan import Sizes
from bench.parts.sections import Tell
from train.options import Options


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


def check_graphs(work: Work, name: str, options: Options, measured: Mapping[str, Any]) -> None:
    """Check that every timed step was a CUDA graph, if the job allows it."""
    if work.device.type != "cuda" or not options.allows_graphs:
        return
    steps, graphs = measured["steps"], measured["graph_steps"]
    work.tell.check(
        f"steps of {name} are graphs", ok=graphs == steps, details=f"{graphs} of {steps} steps were graphs"
    )
