"""How far a rank is, and the lines about its steps."""

import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from train.report import Report
from train.timing import StepTimer


class Progress:
    """How far the run is, as this rank knows it."""

    def __init__(self, device: torch.device) -> None:
        self.epoch = 1
        """The one that is next, or being taken."""
        self.consumed = 0
        """Training images of this epoch that all ranks together have taken, each counted once."""
        self.steps = 0
        """Of all epochs."""
        self.samples = 0
        """That this rank has taken in all epochs."""
        self.taken = 0
        """Samples of this epoch that this rank has taken. Of a resumed epoch, rank 0 has what all ranks had."""
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        """Over `taken`."""
        self._seconds = 0.0
        self._began: float | None = None

    def begin(self) -> None:
        """An epoch begins, or goes on."""
        self._began = time.perf_counter()

    def seconds(self) -> float:
        """That this epoch took until now, without the time between an interruption and its going on."""
        return self._seconds + (0.0 if self._began is None else time.perf_counter() - self._began)

    def took(self, samples: int, loss_sum: Tensor, *, consumed: int) -> None:
        """A step was taken, after which all ranks together are at `consumed`."""
        self.steps += 1
        self.samples += samples
        self.taken += samples
        self.loss_sum += loss_sum
        self.consumed = consumed

    def next_epoch(self) -> None:
        """The epoch is over."""
        self.epoch += 1
        self.consumed = self.taken = 0
        self.loss_sum.zero_()
        self._seconds, self._began = 0.0, None

    def went(self, seconds: float) -> None:
        """The epoch took so many seconds before it was interrupted."""
        self._seconds = seconds


@dataclass(frozen=True, kw_only=True)
class _Logged:
    index: int
    """Among the timer's steps, from 0."""
    step: int
    epoch: int
    samples: int
    loss: Tensor


class StepLog:
    """Tells of every so many steps, once the device has taken them: nothing waits for it."""

    def __init__(self, report: Report, timer: StepTimer, device: torch.device, every: int) -> None:
        self._report = report
        self._timer = timer
        self._every = every
        self._at_once = device.type == "cpu"
        self._logged: deque[_Logged] = deque()

    def took(self, progress: Progress, loss: Tensor) -> None:
        """A step was taken."""
        if progress.steps % self._every:
            return
        logged = _Logged(
            index=self._timer.count - 1,
            step=progress.steps,
            epoch=progress.epoch,
            samples=progress.samples,
            loss=loss.to("cpu", non_blocking=True),
        )
        self._logged.append(logged)
        self._tell(self._timer.over() - (0 if self._at_once else 1))

    def finish(self) -> None:
        """Tell of all that were taken; waits for the device."""
        self._timer.wait()
        self._tell(self._timer.over())

    def _tell(self, over: int) -> None:
        """Of the steps before the `over`-th; a loss is on its way to the CPU until the next step is over, too."""
        while self._logged and self._logged[0].index < over:
            logged = self._logged.popleft()
            self._report.step(
                logged.step,
                epoch=logged.epoch,
                loss=float(logged.loss),
                samples=logged.samples,
                step_time=self._timer.taken(logged.index),
            )
