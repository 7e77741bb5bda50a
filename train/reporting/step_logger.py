"""The lines about single steps."""

import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from train.reporting.progress import TrainingProgress
from train.reporting.report import Report
from train.reporting.timing import StepTimer


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A step whose line is not written yet."""

    index: int
    """Among the timer's steps, from 0."""
    step: int
    epoch: int
    samples: int
    loss: Tensor


MOST_SILENT_S = 5.0
"""Slow steps are reported at the latest after this time."""


class StepLogger:
    """Reports steps once the device has finished them: nothing waits for it, but for the first step.

    The first one, then every so many, and more often where they are slow.
    """

    def __init__(
        self, report: Report, timer: StepTimer, device: torch.device, every: int, *, counts: bool
    ) -> None:
        """`counts`: whether this rank counts its samples, as one of the ranks does that share a replica."""
        self._report = report
        self._counts = counts
        self._timer = timer
        self._every = every
        self._synchronous = device.type == "cpu"
        self._pending: deque[_Pending] = deque()
        self._noted_at: float | None = None

    def add(self, progress: TrainingProgress, loss: Tensor) -> None:
        """Take note of a step that was begun on the device, and report those that are finished."""
        if progress.steps % self._every and not self._is_due():
            return
        first, self._noted_at = self._noted_at is None, time.monotonic()
        pending = _Pending(
            index=self._timer.count - 1,
            step=progress.steps,
            epoch=progress.epoch,
            samples=progress.samples if self._counts else 0,
            loss=loss.to("cpu", non_blocking=True),
        )
        self._pending.append(pending)
        if first:
            # At once, and so with the time at which it was over: the first step is what people wait for.
            self.finish()
            return
        # A loss is being copied to the CPU until the step after it is finished, too.
        self._report_before(self._timer.finished() - (0 if self._synchronous else 1))

    def _is_due(self) -> bool:
        """Return whether nothing, or for long nothing, was noted."""
        return self._noted_at is None or time.monotonic() - self._noted_at >= MOST_SILENT_S

    def finish(self) -> None:
        """Wait for the device and report all steps."""
        self._timer.wait()
        self._report_before(self._timer.finished())

    def _report_before(self, index: int) -> None:
        while self._pending and self._pending[0].index < index:
            pending = self._pending.popleft()
            self._report.step(
                pending.step,
                epoch=pending.epoch,
                loss=float(pending.loss),
                samples=pending.samples,
                step_time=self._timer.step_time(pending.index),
            )
