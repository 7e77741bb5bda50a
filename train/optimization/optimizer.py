"""The optimizer: SGD, Adam or AdamW of torch, fused or compiled where that is faster."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from train.options import Options

MOMENTUM = 0.9


def update_is_compiled(options: Options) -> bool:
    """Return whether the optimizer's step is compiled, and not only what comes before it.

    With fp16 it is not: its scaler skips the update where a gradient has overflowed, for which it asks the device, or
    torch's own fused operation. Neither can be in a graph.
    """
    return options.compile and options.precision != "fp16"


def build_optimizer(
    options: Options, parameters: Iterable[nn.Parameter], *, fused: bool
) -> torch.optim.Optimizer:
    """Build the optimizer. `fused`: one operation for all weights; the numbers are the same but for rounding.

    Otherwise torch chooses; on a GPU it takes a few operations for all weights together. A compiled step is fused by
    the compiler, which keeps torch's own fused operations out of its graphs: there `fused` has no effect.
    """
    weights = list(parameters)
    device = weights[0].device
    compiled = update_is_compiled(options)
    fused = fused and not compiled
    # A number would be part of the compiled code, which then would be compiled again whenever it changes.
    lr = torch.tensor(options.lr, device=device) if compiled else options.lr
    decay = options.weight_decay
    if options.optimizer == "sgd":
        return SGD(weights, lr=lr, weight_decay=decay, momentum=MOMENTUM, fused=fused or None)
    kind = Adam if options.optimizer == "adam" else AdamW
    # On a GPU its count of steps is kept there, too: nothing has to be read from it, or sent to it, in a step. A
    # fused one does so by itself; told to, it would warn that no graph is captured.
    capturable = device.type == "cuda" and compiled
    return kind(weights, lr=lr, weight_decay=decay, fused=fused or None, capturable=capturable)
