"""Choose the precision that a network computes in."""

from contextlib import AbstractContextManager, nullcontext

import torch

from train.options import Options

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(options: Options, device: torch.device) -> AbstractContextManager[None]:
    """Return the context that computes in the options' precision on the device.

    Autocast's copies of weights are not cached for blocks that compute twice, nor in a CUDA graph.
    """
    half = AUTOCAST.get(options.precision)
    in_graph = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    cached = not options.activation_checkpointing and not in_graph
    return torch.autocast(device.type, half, cache_enabled=cached) if half else nullcontext()
