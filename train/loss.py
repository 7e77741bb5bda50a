"""The training loss, and the precision that the network and the loss are computed in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from train.options import Options

NOT_COUNTED = -100
"""The label of a sample that adds nothing to the loss."""
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def mean_loss(
    logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, labels_in_all: int | None = None
) -> Tensor:
    """Return the mean loss of logits [b, classes] for labels [b], or of [b, n, classes] for [b, n].

    `labels_in_all`: the labels of the whole batch; with it, returns these labels' share of the batch's mean.
    """
    loss = cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=NOT_COUNTED,
        reduction="mean" if labels_in_all is None else "sum",
        label_smoothing=label_smoothing,
    )
    return loss if labels_in_all is None else loss / labels_in_all


def autocast(options: Options, device: torch.device) -> AbstractContextManager[None]:
    """Return the context that computes in the options' precision on the device.

    Autocast's copies of weights are not cached for blocks that compute twice, nor in a CUDA graph.
    """
    half = AUTOCAST.get(options.precision)
    in_graph = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    cached = not options.activation_checkpointing and not in_graph
    return torch.autocast(device.type, half, cache_enabled=cached) if half else nullcontext()
