"""How long each step took, and for what.

A step has three parts that add up to it:

- data: until the batch is there, on the device;
- communication: from when this rank's own gradients are all computed until they are averaged over all ranks. What
  overlaps with the backward pass costs nothing and is not in it; waiting for a slower rank is;
- compute: the rest: forward, backward, optimizer.

On a CPU the clock is the host's. On a GPU the marks are CUDA events in its stream: the parts are times of the GPU
(one that idles until the host has the next batch waits for data), and to take them makes nobody wait.
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
    """Takes the marks of each step, in the order of the methods."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: dict[str, Mark] = {}
        self._unread: deque[dict[str, Mark]] = deque()
        self._times = array("d")
        """The three parts of each step that is over: a long run has millions of steps."""
        self._aside: set[int] = set()

    def start(self) -> None:
        """The step begins: next, its batch is fetched."""
        self._marks = {"start": self._now()}

    def set_aside(self) -> None:
        """The step that has begun does more than a step does: it says nothing about the others."""
        self._aside.add(self.count)

    def data_ready(self) -> None:
        """The batch is on the device."""
        self._marks["data"] = self._now()

    def gradients_ready(self) -> None:
        """This rank's own gradients are all computed. Not called where nothing is averaged."""
        self._marks["own"] = self._now()

    def backward_done(self) -> None:
        """The gradients are those of all ranks."""
        self._marks["averaged"] = self._now()

    def end(self) -> None:
        """The weights are updated."""
        self._marks["end"] = self._now()
        self._unread.append(self._marks)

    @property
    def count(self) -> int:
        """Steps that were taken."""
        return len(self._times) // 3 + len(self._unread)

    def over(self) -> int:
        """How many steps are over by now. Waits for none."""
        while self._unread and _is_over(self._unread[0]["end"]):
            step = _step_time(self._unread.popleft())
            self._times.extend((step.data_ms, step.compute_ms, step.communication_ms))
        return len(self._times) // 3

    def taken(self, index: int) -> StepTime:
        """A step that is over, counted from 0. Waits for nothing."""
        data, compute, communication = self._times[3 * index : 3 * index + 3]
        return StepTime(data_ms=data, compute_ms=compute, communication_ms=communication)

    def wait(self) -> None:
        """Until all that was begun on the device is over."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def steps(self) -> list[StepTime]:
        """All steps so far, once they are over, but those that were set aside."""
        self.wait()
        return [self.taken(index) for index in range(self.over()) if index not in self._aside]

    def _now(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def summarize(steps: list[StepTime]) -> Timing:
    """The steps (at least one) without their warm-up, which is at most half of them."""
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


def _is_over(mark: Mark) -> bool:
    return not isinstance(mark, torch.cuda.Event) or bool(mark.query())  # type: ignore[no-untyped-call]


def _ms(begin: Mark, end: Mark) -> float:
    if isinstance(begin, torch.cuda.Event):
        return float(begin.elapsed_time(end))  # type: ignore[arg-type]  # the marks of a step are of one kind
    return (end - begin) * 1000  # type: ignore[operator]
