"""The optimizer: SGD, Adam or AdamW of torch, fused or compiled where that is faster."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from train.options import Options
from train.strategies.strategy import Strategy

MOMENTUM = 0.9


def update_is_compiled(options: Options) -> bool:
    """Return whether the optimizer's step is compiled, and not only what comes before it.

    With fp16 it is not: its scaler skips the update where a gradient has overflowed, for which it asks the device, or
    torch's own fused operation. Neither can be in a graph.
    """
    return options.compile and options.precision != "fp16"


def build_optimizer(
    strategy: Strategy, parameters: Iterable[nn.Parameter], *, fused: bool, graphs: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer, distributed by the strategy.

    `fused`: one operation for all weights; the numbers are the same but for rounding. Otherwise torch chooses; on a
    GPU it takes a few operations for all weights together. A compiled step is fused by the compiler, which keeps
    torch's own fused operations out of its graphs: there `fused` has no effect.

    `graphs`: the step is recorded as a CUDA graph, which would repeat a number for ever: the learning rate is a
    tensor, in the single precision in which torch's fused operations read it.
    """
    options, device = strategy.options, strategy.device
    compiled = update_is_compiled(options)
    settings: dict[str, Any] = {
        # A number would be part of the compiled code, which then would be compiled again whenever it changes.
        "lr": torch.tensor(options.lr, device=device, dtype=torch.float32 if graphs else None)
        if compiled or graphs
        else options.lr,
        "weight_decay": options.weight_decay,
        "fused": (fused and not compiled) or None,
    }
    if options.optimizer == "sgd":
        return strategy.optimizer(SGD, parameters, {**settings, "momentum": MOMENTUM})
    # On a GPU its count of steps is kept there, too: nothing has to be read from it, or sent to it, in a step. A
    # fused one does so by itself; told to, it would warn that no graph is captured.
    capturable = graphs or (device.type == "cuda" and compiled)
    kind = Adam if options.optimizer == "adam" else AdamW
    return strategy.optimizer(kind, parameters, {**settings, "capturable": capturable})
