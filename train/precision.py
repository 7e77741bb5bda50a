"""The precision that a network computes in."""

from contextlib import AbstractContextManager, nullcontext

import torch

from train.options import Precision

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return the context that computes in that precision on the device."""
    half = AUTOCAST.get(precision)
    return torch.autocast(device.type, half) if half else nullcontext()
