"""The optimizer: SGD, Adam or AdamW of torch, fused where that is faster."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from train.strategies.strategy import Strategy

MOMENTUM = 0.9


def build_optimizer(
    strategy: Strategy, parameters: Iterable[nn.Parameter], *, fused: bool, graphs: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer, distributed by the strategy.

    `fused`: one operation for all weights; the numbers are the same but for rounding. Otherwise torch chooses; on a
    GPU it takes a few operations for all weights together.

    `graphs`: the step is recorded as a CUDA graph, which would repeat a number for ever: the learning rate is a
    tensor, in the single precision in which torch's fused operations read it.
    """
    options = strategy.options
    settings: dict[str, Any] = {
        "lr": torch.tensor(options.lr, device=strategy.device, dtype=torch.float32) if graphs else options.lr,
        "weight_decay": options.weight_decay,
        "fused": fused or None,
    }
    if options.optimizer == "sgd":
        return strategy.optimizer(SGD, parameters, {**settings, "momentum": MOMENTUM})
    kind = Adam if options.optimizer == "adam" else AdamW
    return strategy.optimizer(kind, parameters, {**settings, "capturable": graphs})
