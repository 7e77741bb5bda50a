"""Run a rank of the built-in job on a simulated GPU: `planted_rank.py RATE TP OPTIONS`, with torchrun's variables.

Each linear layer takes as long as RATE operations a second would, in both passes: the rank sleeps for the rest of the
time. This includes the CPU's time for all other work, as a GPU would hide it, but not waiting for other ranks. TP:
the number of ranks that share a layer.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

sys.path.insert(0, str(Path(__file__).parents[2]))

from train.__main__ import main
from train.advice.data import VOCABULARY_OF_BYTES
from train.models.gpt_sizes import GPT_SIZES


class Clock:
    """Sleeps until the layers so far have taken their time."""

    def __init__(self) -> None:
        self._cpu_s = time.thread_time()
        self._ahead_s = 0.0

    def pass_time(self, seconds: float) -> None:
        """Sleep for the time, less this thread's CPU time since the last call."""
        now = time.thread_time()
        self._ahead_s += now - self._cpu_s
        self._cpu_s = now
        slept = max(0.0, seconds - self._ahead_s)
        self._ahead_s -= min(seconds, self._ahead_s)
        time.sleep(slept)


class Planted(torch.autograd.Function):
    """A layer's output, with the layer's time in the backward pass."""

    @staticmethod
    def forward(ctx: object, value: Tensor, clock: Clock, seconds: float) -> Tensor:
        ctx.clock, ctx.seconds = clock, seconds  # type: ignore[attr-defined]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        ctx.clock.pass_time(ctx.seconds)  # type: ignore[attr-defined]
        return gradient, None, None


def plant(rate: float, tp: int, model: str, length: int) -> None:
    """Make every linear layer take its time. Attention's operations are spread over the layers."""
    clock, size = Clock(), GPT_SIZES[model]
    matrices = size.layers * size.weights_per_layer + VOCABULARY_OF_BYTES * size.width
    spread = size.flops_per_token(VOCABULARY_OF_BYTES, length) / (6.0 * matrices)

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if not isinstance(layer, nn.Linear):
            return None
        ranks = 1 if layer.out_features == VOCABULARY_OF_BYTES else tp
        rows = inputs[0].numel() // inputs[0].shape[-1]
        seconds = 2.0 * spread * rows * layer.in_features * layer.out_features / ranks / rate
        clock.pass_time(seconds)
        if not output.requires_grad:
            return None
        planted: Tensor = Planted.apply(output, clock, 2 * seconds)  # type: ignore[no-untyped-call]
        return planted

    register_module_forward_hook(hook)


if __name__ == "__main__":
    rate, tp, *words = sys.argv[1:]
    plant(float(rate), int(tp), words[words.index("--model") + 1], int(words[words.index("--seq-len") + 1]))
    sys.argv[1:] = words
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # as the job does: to leave a group in order can mean to wait for ever
