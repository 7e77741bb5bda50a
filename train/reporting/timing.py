"""How long each step took, and for what.

A step has three parts that add up to it:

- data: until the batch is on the device;
- communication: from when this rank's own gradients are all computed until they are averaged over all ranks. It
  includes waiting for a slower rank, and leaves out what overlaps with the backward pass;
- compute: the rest: forward, backward, optimizer.

On a CPU the clock is the host's. On a GPU the marks are CUDA events in its stream: the parts are times of the GPU (if
it idles until the host has the next batch, it waits for data), and to record them makes nothing wait.

Speeds are those of the steady steps: the samples of a step over the median time between the ends of two steps. The
first step with a batch of some size compiles and tunes, and is no steady step; an evaluation or a checkpoint between
two steps is in no step's time.
"""

import time
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

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
    samples: int
    """In the rank's batch."""
    apart_ms: float
    """From the end of the step before to its own; from its own start where something else was between the two."""
    is_first: bool
    """Whether it is the first step with so many samples, which compiles and tunes."""

    @property
    def step_ms(self) -> float:
        """The whole step."""
        return self.data_ms + self.compute_ms + self.communication_ms


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The steady steps of a run, or of a part of it."""

    samples_per_s: float
    """Of this rank: of the batch size with which it took the most samples."""
    p50_ms: float
    p95_ms: float
    data_share: float
    compute_share: float
    communication_share: float
    """The three shares add up to 1."""


STEP_VALUES = len(fields(StepTime))


class StepTimer:
    """Records when each part of a step ends. Its methods are called in their order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._step = _Marks()
        self._unread: deque[_Marks] = deque()
        self._times = array("d")
        """The values of each finished step, in the order of StepTime's fields: a long run has millions of steps."""
        self._sizes: set[int] = set()
        """Of the batches so far."""
        self._last_end: Mark | None = None
        """The end of the step before. None: something else came since."""

    def start(self) -> None:
        """Mark that a step begins: next, its batch is fetched."""
        self._step = _Marks(at={"start": self._now()})

    def interrupt(self) -> None:
        """Mark that something else, such as a checkpoint, is between the step before and the next one."""
        self._last_end = None

    def data_ready(self, samples: int) -> None:
        """Mark that the batch, of so many samples, is on the device."""
        self._step.at["data"] = self._now()
        self._step.samples, self._step.is_first = samples, samples not in self._sizes
        self._sizes.add(samples)

    def gradients_ready(self) -> None:
        """Mark that this rank's own gradients are all computed. Not called where nothing is averaged."""
        self._step.at["own"] = self._now()

    def backward_done(self) -> None:
        """Mark that the gradients are averaged over all ranks."""
        self._step.at["averaged"] = self._now()

    def end(self) -> None:
        """Mark that the weights are updated."""
        step = self._step
        step.at["before"] = step.at["start"] if self._last_end is None else self._last_end
        step.at["end"] = self._last_end = self._now()
        self._unread.append(step)

    @property
    def count(self) -> int:
        """The number of steps that have ended or were begun on the device."""
        return len(self._times) // STEP_VALUES + len(self._unread)

    def finished(self) -> int:
        """Return how many steps are finished by now, without waiting."""
        while self._unread and _is_finished(self._unread[0].at["end"]):
            step = _step_time(self._unread.popleft())
            parts = (step.data_ms, step.compute_ms, step.communication_ms)
            self._times.extend((*parts, step.samples, step.apart_ms, step.is_first))
        return len(self._times) // STEP_VALUES

    def step_time(self, index: int) -> StepTime:
        """Return the times of a finished step, counted from 0."""
        data, compute, communication, samples, apart, first = self._times[
            STEP_VALUES * index : STEP_VALUES * (index + 1)
        ]
        return StepTime(
            data_ms=data,
            compute_ms=compute,
            communication_ms=communication,
            samples=int(samples),
            apart_ms=apart,
            is_first=bool(first),
        )

    def wait(self) -> None:
        """Wait until the device has finished all that was begun on it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def steps(self, since: int = 0) -> list[StepTime]:
        """Return the steps from that index on, counted from 0. Waits until they are finished."""
        self.wait()
        return [self.step_time(index) for index in range(since, self.finished())]

    def _now(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def summarize(steps: Sequence[StepTime]) -> Timing | None:
    """Summarize the steady steps: without the first of each size, and the warm-up, at most half of the others.

    None: no step is left.
    """
    later = [step for step in steps if not step.is_first]
    steady = later[min(WARM_UP_STEPS, len(later) // 2) :]
    if not steady:
        return None
    taken = Counter[int]()
    for step in steady:
        taken[step.samples] += step.samples
    [(usual, _)] = taken.most_common(1)
    apart_ms = float(np.median([step.apart_ms for step in steady if step.samples == usual]))
    p50, p95 = np.percentile([step.step_ms for step in steady], [50, 95])
    total = sum(step.step_ms for step in steady)
    data = sum(step.data_ms for step in steady) / total
    communication = sum(step.communication_ms for step in steady) / total
    return Timing(
        samples_per_s=1000 * usual / apart_ms,
        p50_ms=float(p50),
        p95_ms=float(p95),
        data_share=data,
        compute_share=1 - data - communication,
        communication_share=communication,
    )


@dataclass
class _Marks:
    """A step that is under way, or whose times are not read yet."""

    at: dict[str, Mark] = field(default_factory=dict)
    samples: int = 0
    is_first: bool = False


def _step_time(step: _Marks) -> StepTime:
    marks = step.at
    own = marks.get("own", marks["averaged"])
    return StepTime(
        data_ms=_ms(marks["start"], marks["data"]),
        compute_ms=_ms(marks["data"], own) + _ms(marks["averaged"], marks["end"]),
        communication_ms=_ms(own, marks["averaged"]),
        samples=step.samples,
        apart_ms=_ms(marks["before"], marks["end"]),
        is_first=step.is_first,
    )


def _is_finished(mark: Mark) -> bool:
    return not isinstance(mark, torch.cuda.Event) or bool(mark.query())  # type: ignore[no-untyped-call]


def _ms(begin: Mark, end: Mark) -> float:
    if isinstance(begin, torch.cuda.Event):
        return float(begin.elapsed_time(end))  # type: ignore[arg-type]  # the marks of a step are of one kind
    return (end - begin) * 1000  # type: ignore[operator]
