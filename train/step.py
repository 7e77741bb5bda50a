"""One training step: forward, backward, the averaged gradients, the weights.

With `--compile` it is three compiled parts: the network with its loss, their backward pass, and what is done with the
gradients. Between them are the averaging over the ranks, which DistributedDataParallel starts while the backward pass
is under way, and the timer's marks.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from train.errors import BadOptions
from train.optim import update_is_compiled
from train.options import Options, Precision
from train.timing import StepTimer

AUTOCAST: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Objective(nn.Module):
    """The network and its loss as one module: compiled, they are one graph, in DistributedDataParallel as well."""

    def __init__(self, network: nn.Module, options: Options) -> None:
        super().__init__()
        self.network = network
        self._label_smoothing = options.label_smoothing
        if options.compile:
            # Each shape by itself. The last batch of an epoch would else have torch compile one graph for any size,
            # and take that, which is slower, for all other batches as well.
            self.compile(dynamic=False)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss, and the logits [b, classes]."""
        logits = self.network(images)
        return cross_entropy(logits, labels, label_smoothing=self._label_smoothing), logits


class Step:
    """Takes a batch, changes the weights.

    Nothing in it waits for the device, but for fp16 without the fused optimizer: whether a gradient has overflowed is
    asked for by the CPU there.
    """

    def __init__(
        self,
        options: Options,
        objective: Objective | DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        timer: StepTimer,
        *,
        part: int,
    ) -> None:
        """`objective`: within what averages the gradients, where there are several ranks.

        `part`: images that are computed at once, at most.
        """
        self._options = options
        self._part = part
        self._objective = objective
        self._optimizer = optimizer
        self._timer = timer
        self._weights = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self._weights[0].device
        # Gradients of half precision lose what is small: the loss is scaled up, and they are scaled back.
        self._sizes: set[int] = set()
        self.scaler = torch.amp.GradScaler(self._device.type, enabled=options.precision == "fp16")
        self._update: Callable[[], None] = self._take_scaled if self.scaler.is_enabled() else self._take
        if update_is_compiled(options):
            self._update = torch.compile(self._take, dynamic=False)

    def compiles(self, batch_size: int) -> bool:
        """Whether a batch of that size is the first of it, for which torch compiles then."""
        new = self._options.compile and batch_size not in self._sizes
        self._sizes.add(batch_size)
        return new

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of the batch, and the logits [b, classes]; neither has a gradient."""
        self._optimizer.zero_grad()
        parts = list(zip(torch.split(images, self._part), torch.split(labels, self._part), strict=True))
        losses, logits = [], []
        for number, (part, truth) in enumerate(parts, 1):
            # The gradients are averaged over the ranks once, with the last part.
            with self._alone() if number < len(parts) else nullcontext():
                with self.autocast(), _told_of_single_images(self._options.model):
                    loss, guessed = self._objective(part, truth)
                    loss = loss * (len(truth) / len(labels)) if len(parts) > 1 else loss
                self.scaler.scale(loss).backward()
            losses.append(loss.detach())
            logits.append(guessed.detach())
        self._timer.backward_done()
        self._update()
        if len(parts) == 1:
            return losses[0], logits[0]
        return torch.stack(losses).sum(), torch.cat(logits)

    def autocast(self) -> AbstractContextManager[None]:
        """The arithmetic of the chosen precision."""
        return autocast(self._options.precision, self._device)

    def _take(self) -> None:
        """Clip the gradients, and change the weights."""
        if self._options.clip is not None:
            nn.utils.clip_grad_norm_(self._weights, self._options.clip)
        self._optimizer.step()

    def _take_scaled(self) -> None:
        """The same with gradients that are scaled up. Where one has overflowed, the weights stay as they are."""
        if self._options.clip is not None:
            self.scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._weights, self._options.clip)
        self.scaler.step(self._optimizer)
        self.scaler.update()

    def _alone(self) -> AbstractContextManager[None]:
        """Gradients stay with this rank."""
        if isinstance(self._objective, DistributedDataParallel):
            return self._objective.no_sync()
        return nullcontext()


def part_of(batch_size: int, accumulate: int) -> int:
    """Images that are computed at once, where a batch is computed in so many parts. A larger batch has more parts."""
    return math.ceil(batch_size / accumulate)


def smallest_part(samples: int, batch_size: int, part: int) -> int:
    """Images that the smallest part of a batch has, when `samples` are taken in batches, and each in parts."""
    return min(
        batch % part or part for batch in (min(batch_size, samples), samples % batch_size or batch_size)
    )


def check_single_image(model: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    """Raises BadOptions for a model that can't be trained on one image. The model stays as it is."""
    trial = copy.deepcopy(model).train()
    weight = next(trial.parameters())
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices), _told_of_single_images(name):
        trial(torch.zeros(1, *shape, device=weight.device, dtype=weight.dtype))


@contextmanager
def _told_of_single_images(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise BadOptions(
            f"{name} normalises over the batch, and can't be trained on a single image, which is what is left for "
            "the last batch or part of an epoch. Give another --batch-size, or larger images."
        ) from error


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """The arithmetic of a precision on a device."""
    half = AUTOCAST.get(precision)
    return torch.autocast(device.type, half) if half else nullcontext()
