"""Measure how long each step takes, by part.

A step has three parts that add up to it:

- data: until the batch is on the device;
- communication: from the end of this rank's gradients until they are averaged over all ranks. It includes waiting for
  a slower rank, and leaves out all that overlaps with the backward pass;
- compute: the rest: forward, backward, optimizer.

On a CPU the clock is the host's. On a GPU the marks are CUDA events in its stream: the parts are times of the GPU (if
it idles until the host has the next batch, it waits for data), and recording them makes nothing wait.

Speeds are of the steady steps: the samples of a step over the median time between the ends of two steps. The first
step of each batch size compiles and tunes, and is not steady; an evaluation or a checkpoint between two steps is in
no step's time.

A step that is one CUDA graph has no marks inside: if ranks average, its computing and communication are not known
separately, and neither are the shares of a run whose steady steps are graphs.
"""

import math
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    communication_ms: float | None
    """`None`: unknown, and contained in `compute_ms`."""
    samples: int
    """In the rank's batch."""
    apart_ms: float
    """From the end of the previous step to its end; from its start if anything came between."""
    is_first: bool
    """Whether the step compiles and tunes, as the first one of each batch size does, or records a graph."""
    in_graph: bool = False
    """Whether the step was a CUDA graph."""

    @property
    def step_ms(self) -> float:
        """The whole step."""
        return self.data_ms + self.compute_ms + (self.communication_ms or 0.0)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The speed of a run's steady steps, or of some of them."""

    samples_per_s: float
    """Samples a second of this rank, at the batch size that has the most samples."""
    p50_ms: float
    p95_ms: float
    data_share: float
    compute_share: float | None
    communication_share: float | None
    """The three shares add up to 1. `None`: compute and communication are not separate."""
    graphs: bool
    """Whether the steady steps are CUDA graphs."""


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
        self._averages = False
        """Whether the ranks average gradients."""
        self._last_end: Mark | None = None
        """End of the previous step. `None`: something else came between."""

    def start(self) -> None:
        """Mark that a step begins: next, its batch is fetched."""
        self._step = _Marks(at={"start": self._now()})

    def interrupt(self) -> None:
        """Mark that another activity, such as a checkpoint, separates the last step from the next."""
        self._last_end = None

    def data_ready(self, samples: int) -> None:
        """Mark that the batch of `samples` is on the device."""
        self._step.at["data"] = self._now()
        self._step.samples, self._step.is_first = samples, samples not in self._sizes
        self._sizes.add(samples)

    def in_graph(self, in_graph: bool = True, *, recorded: bool = False) -> None:
        """Set whether the rest of the step is a graph, without marks inside, and whether it is recorded now."""
        self._step.in_graph = in_graph
        self._step.is_first |= recorded

    def gradients_ready(self) -> None:
        """Mark that this rank's gradients are all computed. Not called if nothing is averaged."""
        self._averages = True
        self._mark("own")

    def backward_done(self) -> None:
        """Mark that the gradients are averaged over all ranks."""
        self._mark("averaged")

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
            step = self._unread.popleft()
            at = step.at
            averaged = at.get("averaged", at["end"])
            computed = at.get("own", averaged)
            data_ms = _ms(at["start"], at["data"])
            compute_ms = _ms(at["data"], computed) + _ms(averaged, at["end"])
            communication_ms = math.nan if step.in_graph and self._averages else _ms(computed, averaged)
            apart_ms = _ms(at["before"], at["end"])
            parts = (data_ms, compute_ms, communication_ms)
            self._times.extend((*parts, step.samples, apart_ms, step.is_first, step.in_graph))
        return len(self._times) // STEP_VALUES

    def step_time(self, index: int) -> StepTime:
        """Return the times of a finished step, counted from 0."""
        data, compute, communication, samples, apart, first, in_graph = self._times[
            STEP_VALUES * index : STEP_VALUES * (index + 1)
        ]
        return StepTime(
            data_ms=data,
            compute_ms=compute,
            communication_ms=None if math.isnan(communication) else communication,
            samples=int(samples),
            apart_ms=apart,
            is_first=bool(first),
            in_graph=bool(in_graph),
        )

    def wait(self) -> None:
        """Wait until the device has finished all that was begun on it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def steps(self, since: int = 0) -> list[StepTime]:
        """Return the steps from that index on, counted from 0. Waits until they are finished."""
        self.wait()
        return [self.step_time(index) for index in range(since, self.finished())]

    def _mark(self, name: str) -> None:
        if not self._step.in_graph:
            self._step.at[name] = self._now()

    def _now(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def summarize(steps: Sequence[StepTime]) -> Timing | None:
    """Summarize the steady steps: without the first of each size, and the warm-up, at most half of the others.

    If some steps are graphs, only these are steady. `None`: no step is left.
    """
    later = [step for step in steps if not step.is_first]
    steady = [step for step in later if step.in_graph] or later[min(WARM_UP_STEPS, len(later) // 2) :]
    if not steady:
        return None
    samples_of_size = Counter[int]()
    for step in steady:
        samples_of_size[step.samples] += step.samples
    [(usual, _)] = samples_of_size.most_common(1)
    apart_ms = float(np.median([step.apart_ms for step in steady if step.samples == usual]))
    p50, p95 = np.percentile([step.step_ms for step in steady], [50, 95])
    step_ms = float(np.mean([step.step_ms for step in steady]))
    data = float(np.mean([step.data_ms for step in steady])) / step_ms
    known = [step.communication_ms for step in steady if step.communication_ms is not None]
    communication = float(np.mean(known)) / step_ms if len(known) == len(steady) else None
    return Timing(
        samples_per_s=1000 * usual / apart_ms,
        p50_ms=float(p50),
        p95_ms=float(p95),
        data_share=data,
        compute_share=None if communication is None else 1 - data - communication,
        communication_share=communication,
        graphs=steady[0].in_graph,
    )


@dataclass
class _Marks:
    """A step in progress, or with unread times."""

    at: dict[str, Mark] = field(default_factory=dict)
    samples: int = 0
    is_first: bool = False
    in_graph: bool = False


def _is_finished(mark: Mark) -> bool:
    return not isinstance(mark, torch.cuda.Event) or bool(mark.query())  # type: ignore[no-untyped-call]


def _ms(begin: Mark, end: Mark) -> float:
    if isinstance(begin, torch.cuda.Event):
        return float(begin.elapsed_time(end))  # type: ignore[arg-type]  # the marks of a step are of one kind
    return (end - begin) * 1000  # type: ignore[operator]


class TimeParts:
    """Seconds by the part's name. A second counts once: for the innermost part that is measured then."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the body, without the parts that are measured in it."""
        began, before = time.perf_counter(), sum(self.seconds.values())
        try:
            yield
        finally:
            inner = sum(self.seconds.values()) - before
            self.add(name, time.perf_counter() - began - inner)

    def add(self, name: str, seconds: float) -> None:
        """Add to a part."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
