"""Take a training step: forward and backward pass, averaged gradients, update of the weights.

With `--compile` the network's repeated blocks are compiled one by one, or the network with its loss as a whole, each
with its backward pass. torch averages over the ranks, clips and updates.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from train.errors import BadOptions
from train.loss import mean_loss
from train.options import Options
from train.reporting.timing import StepTimer
from train.strategies.strategy import Strategy, weights_of
from train.strategies.wrapping import repeated_blocks

MAX_GRAPHS = 64
"""Maximum compiled versions of one function. Past torch's limit of 8 a function runs without them, for ever."""


class ModelWithLoss(nn.Module):
    """The network and its loss as one module, for DistributedDataParallel."""

    def __init__(self, network: nn.Module, options: Options) -> None:
        super().__init__()
        self.network = network
        self._label_smoothing = options.label_smoothing
        self._keeps_logits = not options.is_text
        self._first_parts: list[nn.Module] = []
        """For text compiled in blocks: the network up to its last block. The rest is one graph with the loss."""
        if options.compile:
            blocks = compiled_blocks(network)
            compile_in_parts(self, blocks)
            if blocks and options.is_text:
                parts = list(network.children())
                end = parts.index(blocks[-1]) + 1
                self._first_parts, self._last_parts = parts[:end], parts[end:]
                self._compiled_loss = torch.compile(self._loss, dynamic=False)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the mean loss, and the logits [b, classes] of images.

        Logits of text are the largest tensor of the step. As they are no output, they are freed before the backward
        pass, and compiled code writes their gradient in their place.
        """
        if not self._first_parts:
            return self._loss([self.network], images, labels)
        for part in self._first_parts:
            images = part(images)
        return self._compiled_loss(self._last_parts, images, labels)

    def _loss(self, parts: list[nn.Module], values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        for part in parts:
            values = part(values)
        loss = mean_loss(values, labels, label_smoothing=self._label_smoothing)
        return loss, values if self._keeps_logits else None


class TrainStep:
    """Updates the weights by one batch.

    No part waits for the device, except with fp16 and without the fused optimizer: the CPU then checks whether a
    gradient has overflowed.
    """

    def __init__(
        self,
        options: Options,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        timer: StepTimer,
        strategy: Strategy,
        *,
        batch_size: int,
        micro_batch_size: int,
    ) -> None:
        """`model`: a ModelWithLoss, wrapped by the strategy.

        `batch_size`: of a whole batch, at the start. `micro_batch_size`: maximum number of images computed at once.
        """
        self.options = options
        self._micro_batch_size = micro_batch_size
        self._compiled_sizes = whole_batch_sizes(batch_size, micro_batch_size)
        self.model = model
        self.optimizer = optimizer
        self.timer = timer
        self.strategy = strategy
        self.keeps_gradients = False
        """Whether gradients stay allocated between steps, as a graph writes them."""
        self.updates = False
        """Whether the last step has begun to update the weights."""
        self._weights = weights_of(optimizer)
        # Gradients in half precision lose small values: the loss is scaled up, and the gradients are scaled back.
        scales = options.precision == "fp16" and not strategy.own_precision
        self.scaler = torch.amp.GradScaler(strategy.device.type, enabled=scales)

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Take the step. Returns the mean loss of the batch and the logits [b, classes], both without gradient.

        Logits are `None` for text, and may be `None` on a rank that does not count its samples.
        """
        strategy = self.strategy
        self.updates = False
        if self.keeps_gradients:
            self.optimizer.zero_grad(set_to_none=False)
        else:
            strategy.zero_grad(self.optimizer)
        parts = (torch.split(tensor, self._micro_batch_size) for tensor in (images, labels))
        batch = list(zip(*parts, strict=True))

        def compute(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
            with nullcontext() if len(targets) in self._compiled_sizes else uncompiled():
                with strategy.autocast(), _explain_single_image(self.options.model):
                    loss, logits = self.model(inputs, targets)
                    loss = loss * (len(targets) / len(labels)) if len(batch) > 1 else loss
                strategy.propagate(self.scaler.scale(loss))
            return loss.detach(), None if logits is None else logits.detach()

        loss, logits = strategy.backward(self.model, batch, compute)
        self.timer.backward_done()
        self.updates = True
        max_norm, scales = self.options.max_grad_norm, self.scaler.is_enabled()
        if max_norm is not None:
            if scales:
                self.scaler.unscale_(self.optimizer)
            strategy.clip(self._weights, max_norm)
        if scales:  # if a scaled gradient has overflowed, the weights do not change
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            strategy.update(self.optimizer)
        return loss, logits


def micro_batch_size(batch_size: int, gradient_accumulation_steps: int) -> int:
    """Return how many images are computed at once. A larger batch has more micro-batches of that size."""
    return math.ceil(batch_size / gradient_accumulation_steps)


def smallest_micro_batch(samples: int, batch_size: int, size: int) -> int:
    """Return the size of an epoch's smallest micro-batch. `size`: of a full micro-batch."""
    return min(
        batch % size or size for batch in (min(batch_size, samples), samples % batch_size or batch_size)
    )


def check_single_image(model: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    """Raise BadOptions for a model that can't be trained on one image. The model does not change."""
    trial = copy.deepcopy(model).train()
    weight = next(trial.parameters())
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices), _explain_single_image(name):
        trial(torch.zeros(1, *shape, device=weight.device, dtype=weight.dtype))


@contextmanager
def _explain_single_image(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise BadOptions(
            f"{name} normalises over the batch, and can't be trained on a single image, which is what is left for "
            "the last batch or micro-batch of an epoch. Give another --batch-size, or larger images."
        ) from error


@contextmanager
def uncompiled() -> Iterator[None]:
    """Compute without compiled code, forward and backward."""
    with torch.compiler.set_stance("force_eager"):
        yield


def whole_batch_sizes(batch_size: int, micro_batch_size: int) -> frozenset[int]:
    """Return the sizes of the micro-batches of a whole batch: the last one may be smaller."""
    return frozenset({micro_batch_size, batch_size % micro_batch_size or micro_batch_size})


def compiled_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the blocks to compile one by one, so that equal blocks share a graph.

    Empty: the network repeats few blocks, and compiles faster as a whole.
    """
    blocks = list(repeated_blocks(network).values())
    # Their text has the widths of all layers within them.
    kinds = len(set(map(str, blocks)))
    return blocks if 2 * kinds <= len(blocks) else []


def compile_in_parts(model: nn.Module, blocks: list[nn.Module]) -> None:
    """Have the blocks compiled at their first call, or the model where they are empty: one graph for each shape.

    Otherwise a second shape makes torch compile a graph for any, which is slower, and use it for the first as well.
    """
    from torch._dynamo import config  # importing it takes as long as torch itself

    config.cache_size_limit = MAX_GRAPHS
    # DistributedDataParallel averages a block's gradients while the block before it computes. For the same, torch
    # divides a network that is compiled whole along the buckets.
    config.optimize_ddp = not blocks
    for part in blocks or [model]:
        part.compile(dynamic=False)
