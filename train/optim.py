"""How the weights follow the gradients: the optimizers, and the learning rate of each step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from train.options import LrScaling, Options, Schedule

MOMENTUM = 0.9
STEP_AT = (0.5, 0.75)
"""Parts of the run after which the schedule `step` divides the learning rate by ten."""


def update_is_compiled(options: Options) -> bool:
    """Whether the optimizer's step is compiled, and not only what comes before it.

    Not for fp16: in it the scaler has the weights stay as they are where a gradient has overflowed, for which it asks
    the device, or torch's own fused operation; neither can be in a graph.
    """
    return options.compile and options.precision != "fp16"


def optimizer_for(
    options: Options, parameters: Iterable[nn.Parameter], *, fused: bool
) -> torch.optim.Optimizer:
    """The optimizer. `fused`: one operation for all weights; the numbers are the same but for rounding.

    Else what torch takes by itself, which on a GPU are a few operations for all weights together. A step that is
    compiled is fused by the compiler, which leaves torch's own fused operations out of its graphs: `fused` is of no
    effect then.
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


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """The learning rate of each step, from what is known of the run. What a plateau does comes on top."""

    base: float
    schedule: Schedule
    warmup_epochs: float
    epochs: int

    def at(self, epochs: float) -> float:
        """For the step in whose middle so many epochs have passed, with a fraction."""
        if epochs < self.warmup_epochs:
            return self.base * epochs / self.warmup_epochs
        passed = (epochs - self.warmup_epochs) / max(self.epochs - self.warmup_epochs, 1e-9)
        if self.schedule == "cosine":
            return self.base * (1 + math.cos(math.pi * min(passed, 1.0))) / 2
        if self.schedule == "step":
            return self.base * 0.1 ** sum(passed >= at for at in STEP_AT)
        return self.base


def learning_rate(options: Options, world_size: int) -> LearningRate:
    """That of a run of so many ranks."""
    return LearningRate(
        base=options.lr * scaled(options.lr_scaling, world_size),
        schedule=options.schedule,
        warmup_epochs=options.warmup_epochs,
        epochs=options.epochs,
    )


def scaled(how: LrScaling, world_size: int) -> float:
    """What the learning rate of one rank is multiplied by."""
    return {"none": 1.0, "linear": float(world_size), "sqrt": math.sqrt(world_size)}[how]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Of all its weights."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
