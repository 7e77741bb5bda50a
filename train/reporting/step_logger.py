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


MAX_SILENT_S = 5.0
"""Maximum time without a report, for slow steps."""


class StepLogger:
    """Reports steps once the device has finished them, without waiting for the device.

    Reports the first step (after waiting for it), then every `every` steps, and slow steps more often.
    """

    def __init__(
        self, report: Report, timer: StepTimer, device: torch.device, every: int, *, counts: bool
    ) -> None:
        """`counts`: whether this rank counts its samples, as one rank of each replica does."""
        self._report = report
        self._counts = counts
        self._timer = timer
        self._every = every
        self._synchronous = device.type == "cpu"
        self._pending: deque[_Pending] = deque()
        self._noted_at: float | None = None

    def add(self, progress: TrainingProgress, loss: Tensor) -> None:
        """Record a step that was begun on the device, and report finished steps."""
        first, now = self._noted_at is None, time.monotonic()
        due = self._noted_at is None or now - self._noted_at >= MAX_SILENT_S  # also between its turns
        if progress.steps % self._every and not due:
            return
        self._noted_at = now
        pending = _Pending(
            index=self._timer.count - 1,
            step=progress.steps,
            epoch=progress.epoch,
            samples=progress.samples if self._counts else 0,
            loss=loss.to("cpu", non_blocking=True),
        )
        self._pending.append(pending)
        if first:
            # People wait for the first step: report it at once, with the time of its end.
            self.finish()
            return
        # The copy of a loss to the CPU lasts until the next step has finished.
        self._report_before(self._timer.finished() - (0 if self._synchronous else 1))

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
