"""How long each step took, and for what.

A step has three parts that add up to it:

- data: until the batch is on the device;
- communication: from when this rank's own gradients are all computed until they are averaged over all ranks. It
  includes waiting for a slower rank, and leaves out what overlaps with the backward pass;
- compute: the rest: forward, backward, optimizer.

On a CPU the clock is the host's. On a GPU the marks are CUDA events in its stream: the parts are times of the GPU (if
it idles until the host has the next batch, it waits for data), and to record them makes nothing wait.
"""

import time
from array import array
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

Mark = float | torch.cuda.Event
"""A moment: seconds of the host's clock, or an event in the GPU's stream."""

WARM_UP_STEPS = 5
"""The first steps allocate, tune and connect; they say nothing about the others."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The parts of one step, milliseconds."""

    data_ms: float
    compute_ms: float
    communication_ms: float

    @property
    def step_ms(self) -> float:
        """The whole step."""
        return self.data_ms + self.compute_ms + self.communication_ms


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The steps of a run without the warm-up."""

    p50_ms: float
    p95_ms: float
    data_share: float
    compute_share: float
    communication_share: float
    """The three shares add up to 1."""


class StepTimer:
    """Records when each part of a step ends. Its methods are called in their order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: dict[str, Mark] = {}
        self._unread: deque[dict[str, Mark]] = deque()
        self._times = array("d")
        """The three parts of each finished step: a long run has millions of steps."""
        self._excluded: set[int] = set()

    def start(self) -> None:
        """Mark that a step begins: next, its batch is fetched."""
        self._marks = {"start": self._now()}

    def exclude(self) -> None:
        """Leave the step that has begun out of `steps`: it does more than a step does."""
        self._excluded.add(self.count)

    def data_ready(self) -> None:
        """Mark that the batch is on the device."""
        self._marks["data"] = self._now()

    def gradients_ready(self) -> None:
        """Mark that this rank's own gradients are all computed. Not called where nothing is averaged."""
        self._marks["own"] = self._now()

    def backward_done(self) -> None:
        """Mark that the gradients are averaged over all ranks."""
        self._marks["averaged"] = self._now()

    def end(self) -> None:
        """Mark that the weights are updated."""
        self._marks["end"] = self._now()
        self._unread.append(self._marks)

    @property
    def count(self) -> int:
        """The number of steps that have ended or were begun on the device."""
        return len(self._times) // 3 + len(self._unread)

    def finished(self) -> int:
        """Return how many steps are finished by now, without waiting."""
        while self._unread and _is_finished(self._unread[0]["end"]):
            step = _step_time(self._unread.popleft())
            self._times.extend((step.data_ms, step.compute_ms, step.communication_ms))
        return len(self._times) // 3

    def step_time(self, index: int) -> StepTime:
        """Return the times of a finished step, counted from 0."""
        data, compute, communication = self._times[3 * index : 3 * index + 3]
        return StepTime(data_ms=data, compute_ms=compute, communication_ms=communication)

    def wait(self) -> None:
        """Wait until the device has finished all that was begun on it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def steps(self) -> list[StepTime]:
        """All steps so far except the excluded ones. Waits until they are finished."""
        self.wait()
        return [self.step_time(index) for index in range(self.finished()) if index not in self._excluded]

    def _now(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def summarize(steps: list[StepTime]) -> Timing:
    """Summarize the steps (at least one) without their warm-up, which is at most half of them."""
    steady = steps[min(WARM_UP_STEPS, len(steps) // 2) :]
    p50, p95 = np.percentile([step.step_ms for step in steady], [50, 95])
    total = sum(step.step_ms for step in steady)
    data = sum(step.data_ms for step in steady) / total
    communication = sum(step.communication_ms for step in steady) / total
    return Timing(
        p50_ms=float(p50),
        p95_ms=float(p95),
        data_share=data,
        compute_share=1 - data - communication,
        communication_share=communication,
    )


def _step_time(marks: dict[str, Mark]) -> StepTime:
    own = marks.get("own", marks["averaged"])
    return StepTime(
        data_ms=_ms(marks["start"], marks["data"]),
        compute_ms=_ms(marks["data"], own) + _ms(marks["averaged"], marks["end"]),
        communication_ms=_ms(own, marks["averaged"]),
    )


def _is_finished(mark: Mark) -> bool:
    return not isinstance(mark, torch.cuda.Event) or bool(mark.query())  # type: ignore[no-untyped-call]


def _ms(begin: Mark, end: Mark) -> float:
    if isinstance(begin, torch.cuda.Event):
        return float(begin.elapsed_time(end))  # type: ignore[arg-type]  # the marks of a step are of one kind
    return (end - begin) * 1000  # type: ignore[operator]
