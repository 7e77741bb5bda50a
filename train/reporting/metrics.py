"""Compute the mean loss of an epoch's samples over all ranks, and metrics by name.

Importing this module does not import torchmetrics, which loads its metrics of sound, text and pictures as well and
takes seconds. A manager imports it when it first computes such a metric, so that the first step does not wait.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TypedDict

import torch
import torch.distributed as dist
from torch import Tensor

from train.reporting.metric_factory import BUILT_IN, CHECKED_FROM, Metric, build_metric, missing_package

BUFFERED_NUMBERS = 2**24
"""Numbers of logits that are buffered before torchmetrics gets them: 64 MiB."""

State = Mapping[str, Tensor | list[Tensor]]
"""The state of a torchmetrics metric, by torchmetrics' own names."""


class MetricsState(TypedDict):
    """The sums of some samples, as plain data."""

    loss_sum: float
    samples: int
    states: dict[str, State]
    """By the metric's name."""


class MetricsManager:
    """The loss and the metrics of one kind of samples: training, validation or test.

    Every rank has a manager, adds each of its samples once, and computes when the others do. The results do not
    depend on how many samples a rank has (even 0), nor on their division into batches.
    """

    def __init__(self, names: Sequence[str], classes: int, device: torch.device, *, samples: int = 0) -> None:
        """`names`: of torchmetrics' `multiclass_` metrics without that prefix, and of `metric_factory.SETTINGS`.

        `loss` may be named; it is always there. `samples`: about how many this rank adds before it computes. Raises
        BadOptions for a name that is unknown or not a single number, and BadEnvironment where torchmetrics is not
        installed.
        """
        self._device = device
        self._classes = classes
        self._names = [name for name in names if name != "loss"]
        if set(self._names) - {BUILT_IN} and find_spec("torchmetrics") is None:
            raise missing_package("torchmetrics")
        checked = all(classes >= CHECKED_FROM.get(name, math.inf) for name in self._names)
        # torchmetrics would be needed between two steps: import it before the first step.
        if not checked or samples * classes >= BUFFERED_NUMBERS:
            self._metrics  # noqa: B018 - builds them
        self._loss_sum: Tensor
        self._samples: int
        self._logits: list[Tensor]
        self._labels: list[Tensor]
        self._buffered: int
        self._earlier: list[MetricsState]
        self._reset()

    @cached_property
    def _metrics(self) -> list[Metric]:
        """The metrics. Raises as `__init__` does."""
        with torch.inference_mode(mode=False):
            return [build_metric(name, self._classes, self._device) for name in self._names]

    @torch.inference_mode()
    def update(self, logits: Tensor, labels: Tensor, loss_sum: Tensor) -> None:
        """Add a batch: logits [b, classes], labels [b], and the sum (not the mean) of the samples' losses.

        All are copied, so that the caller may reuse them. Nothing is sent to other ranks. Does not wait for the
        device, except after every `BUFFERED_NUMBERS`.
        """
        self._loss_sum = self._loss_sum + loss_sum
        self._samples += len(labels)
        if not self._names:
            return
        # Half precision would tie probabilities that differ.
        wide = torch.promote_types(logits.dtype, torch.float32)
        self._logits.append(logits.to(wide, copy=True))
        self._labels.append(labels.clone())
        self._buffered += logits.numel()
        if self._buffered >= BUFFERED_NUMBERS:
            self._update_metrics()

    @torch.inference_mode()
    def compute(self) -> dict[str, float]:
        """Return `loss`, the mean over the samples of all ranks, and each metric by its name; then reset.

        Every rank has to call it, and gets the same numbers to the last bit. Waits for the device, and for the other
        ranks in one exchange. Without any sample, every number is NaN.
        """
        parts = _of_all_ranks(self.state_dict())
        samples = sum(part["samples"] for part in parts)
        numbers = {"loss": sum(part["loss_sum"] for part in parts) / samples if samples else math.nan}
        for metric in self._metrics:
            # A checkpoint of another version may hold other sums.
            names = metric.metric.metric_state.keys()
            known = bool(parts) and all(part["states"].get(metric.name, {}).keys() == names for part in parts)
            numbers[metric.name] = math.nan
            metric.metric.reset()
            if known:
                for part in parts:
                    metric.metric.merge_state(_copied(part["states"][metric.name], self._device))
                # The instance's `compute` would warn that it has seen no samples.
                numbers[metric.name] = float(type(metric.metric).compute(metric.metric))
                metric.metric.reset()
        self._reset()
        return numbers

    @torch.inference_mode()
    def state_dict(self) -> list[MetricsState]:
        """Return the sums since the last `compute`, on the CPU, for `load_state_dict`. Waits for the device."""
        if not self._samples:
            return list(self._earlier)
        self._update_metrics()
        cpu = torch.device("cpu")
        local_state = MetricsState(
            loss_sum=float(self._loss_sum),
            samples=self._samples,
            states={metric.name: _copied(metric.metric.metric_state, cpu) for metric in self._metrics},
        )
        return [*self._earlier, local_state]

    def load_state_dict(self, states: Sequence[MetricsState]) -> None:
        """Add the sums of other managers, of any ranks. Only one rank may load them.

        A metric that one of them did not have is unknown, and will be NaN.
        """
        self._earlier = list(states)

    def _reset(self) -> None:
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._samples = 0
        self._logits, self._labels, self._buffered = [], [], 0
        self._earlier = []

    def _update_metrics(self) -> None:
        """Pass the buffered logits to torchmetrics. It waits for the device, so not for each batch."""
        if not self._buffered:
            return
        logits, labels = torch.cat(self._logits), torch.cat(self._labels)
        probabilities = (
            logits.softmax(1) if any(metric.of_probabilities for metric in self._metrics) else logits
        )
        for metric in self._metrics:
            metric.metric.update(probabilities if metric.of_probabilities else logits, labels)
        self._logits, self._labels, self._buffered = [], [], 0


def _of_all_ranks(local_states: list[MetricsState]) -> list[MetricsState]:
    """Return the sums of all ranks, in the order of the ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return local_states
    parts = [local_states] * dist.get_world_size()
    dist.all_gather_object(parts, local_states)
    return [part for of_rank in parts for part in of_rank]


def _copied(state: State, device: torch.device) -> State:
    """Copy the state to a device, with new lists, which stay when the metric is reset."""
    return {
        name: value.to(device) if isinstance(value, Tensor) else [tensor.to(device) for tensor in value]
        for name, value in state.items()
    }
