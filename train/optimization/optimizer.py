"""The optimizer, fused where that is faster, and its learning rate as far as the options say it before the run."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from train.options import LrScaling, Options, Schedule
from train.strategies.strategy import Strategy

MOMENTUM = 0.9
STEP_AT = (0.5, 0.75)
"""Fractions of the run after which the schedule `step` divides the learning rate by ten."""


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


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule:
    """The learning rate as a function of the epochs that have passed; the number of steps does not matter."""

    base: float
    schedule: Schedule
    warmup_epochs: float
    epochs: int

    def at(self, epochs: float) -> float:
        """Return the learning rate of the step in whose middle `epochs` (a fraction counts) have passed."""
        if epochs < self.warmup_epochs:
            return self.base * epochs / self.warmup_epochs
        passed = (epochs - self.warmup_epochs) / max(self.epochs - self.warmup_epochs, 1e-9)
        if self.schedule == "cosine":
            return self.base * (1 + math.cos(math.pi * min(passed, 1.0))) / 2
        if self.schedule == "step":
            return self.base * 0.1 ** sum(passed >= at for at in STEP_AT)
        return self.base


def lr_schedule(options: Options, world_size: int) -> LearningRateSchedule:
    """Build the schedule of a run with `world_size` ranks."""
    return LearningRateSchedule(
        base=options.lr * lr_scale(options.lr_scaling, world_size),
        schedule=options.schedule,
        warmup_epochs=options.warmup_epochs,
        epochs=options.epochs,
    )


def lr_scale(scaling: LrScaling, world_size: int) -> float:
    """Return the factor from the learning rate of one rank to that of all."""
    return {"none": 1.0, "linear": float(world_size), "sqrt": math.sqrt(world_size)}[scaling]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
