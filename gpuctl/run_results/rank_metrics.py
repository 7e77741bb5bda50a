"""The metrics lines of one rank, parsed once.

Any script writes these lines: a value may be missing or of a wrong type, and is then not known. Nothing here raises
on them.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Self

from gpuctl.run_results.metric_names import (
    EVENTS,
    Line,
    inner,
    loss_of,
    losses_of,
    number,
    step_of,
    whole,
    words,
)
from gpuctl.run_results.speed import steady_speed
from gpuctl.text import clean
from inventories.runs.end_reasons import Reason
from inventories.runs.result import Share, StepMs
from remote.runs.metrics_lines import MetricsFile

LEAST_WRITTEN_S = 0.1
"""Minimum time for a speed by the writes of a file, s: file times come from a clock with ticks."""
METRICS_KEPT = 32
METRIC_NAME_LENGTH = PLACE_LENGTH = 64
PARTS = ("compute", "communication", "data")
"""Parts of a step's time."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The growth of a rank's metrics file, as the node saw it."""

    samples: float
    """Samples in the first write."""
    seconds: float
    """From that write to the last."""


@dataclass(frozen=True, kw_only=True)
class RankMetrics:
    """The lines of a rank by their kind: the built-in job's on its events, and all others."""

    start: Line = field(default_factory=dict)
    """The last line of the event. Empty: no such line."""
    end: Line = field(default_factory=dict)
    failed: Line = field(default_factory=dict)
    epochs: Sequence[Line] = ()
    measured: Sequence[Line] = ()
    """Lines on no event, of steps or of anything."""
    file: MetricsFile = field(default_factory=MetricsFile)

    @classmethod
    def of(cls, file: MetricsFile) -> Self:
        """Sort the lines of a file."""
        kinds: dict[object, list[Line]] = {kind: [] for kind in (*EVENTS, None)}
        for line in file.lines:
            event = line.get("event")
            kinds[event if event in EVENTS else None].append(line)
        last = {name: kinds[name][-1] for name in ("start", "end", "failed") if kinds[name]}
        return cls(**last, epochs=kinds["epoch"], measured=kinds[None], file=file)

    @cached_property
    def steps(self) -> Sequence[Line]:
        """The lines on a training step."""
        return [line for line in self.measured if step_of(line) is not None]

    @property
    def last_epoch(self) -> Line:
        """The line on the last epoch's end. Empty: no such line."""
        return self.epochs[-1] if self.epochs else {}

    @property
    def device(self) -> str | None:
        """The rank's device: `cpu`, `cuda:0`."""
        return words(self.start.get("device"))

    @property
    def place(self) -> str | None:
        """The part of the model that the rank has, as the job reports it: `stage 2 of 4`."""
        place = words(self.start.get("place"))
        return clean(place, PLACE_LENGTH) if place else None

    @property
    def end_reason(self) -> tuple[Reason, tuple[int, ...]] | None:
        """The reason that a rank gives for its end, and the ranks that it waited for, as far as it knows them."""
        reasons = (Reason.LOST_PEER, Reason.TIMED_OUT)
        reason = next((reason for reason in reasons if self.failed.get("reason") == reason), None)
        ranks = self.failed.get("ranks")
        numbers = map(whole, ranks) if isinstance(ranks, list) else ()
        return None if reason is None else (reason, tuple(rank for rank in numbers if rank is not None))

    @property
    def has_losses(self) -> bool:
        """Return whether a line has a training loss, or a loss on held-out data."""
        return any(map(losses_of, self.measured)) or loss_of(self.end) is not None

    @cached_property
    def step_ms(self) -> StepMs:
        """The rank's time a step: its own summary, else its steps' times, else the time between their lines."""
        summary = inner(self.end.get("step_ms"))
        p50, p95 = number(summary.get("p50")), number(summary.get("p95"))
        if p50 is not None:
            return StepMs(p50=p50, p95=p95)
        steps_ms = [ms for line in self.steps if (ms := number(line.get("step_ms"))) is not None]
        if steps_ms:
            return StepMs(p50=percentile(steps_ms, 50), p95=percentile(steps_ms, 95))
        marks = [
            (step, at)
            for line in self.steps
            if (step := step_of(line)) is not None and (at := number(line.get("time"))) is not None
        ]
        gaps = [  # from each line to the next: steps, milliseconds
            (step - before, (at - earlier) * 1000)
            for (before, earlier), (step, at) in itertools.pairwise(marks)
            if step > before and at >= earlier
        ]
        if len(gaps) < 2:
            return StepMs()
        every_step = all(count == 1 for count, _ in gaps)
        apart = [ms / count for count, ms in gaps]
        # A line every ten steps has their mean, without the slowest step.
        return StepMs(p50=percentile(apart, 50), p95=percentile(apart, 95) if every_step else None)

    @cached_property
    def share(self) -> Share:
        """The shares of the rank's time: its own summary, otherwise sums over its steps."""
        summary = inner(self.end.get("share"))
        parts = {name: number(summary.get(name)) for name in PARTS}
        if any(part is not None for part in parts.values()):
            return Share(**parts)
        known = [
            [ms for name in PARTS if (ms := number(line.get(f"{name}_ms"))) is not None]
            for line in self.steps
        ]
        complete = [parts_ms for parts_ms in known if len(parts_ms) == len(PARTS)]
        total = sum(sum(parts_ms) for parts_ms in complete)
        # Steps that are CUDA graphs have no parts, and the shares of the steps before them are others.
        if total <= 0 or 2 * len(complete) < len(self.steps):
            return Share()
        compute, communication, data = (sum(column) / total for column in zip(*complete, strict=True))
        return Share(compute=compute, communication=communication, data=data)

    @property
    def step_count(self) -> int | None:
        """The number of steps from the first to the last reported, both included."""
        steps = (step_of(line) for line in self.steps)
        numbers = [int(step) for step in steps if step is not None and step.is_integer()]
        return max(numbers) - min(numbers) + 1 if numbers else None

    @cached_property
    def _samples(self) -> Sequence[tuple[float, float | None]]:
        """Samples so far, and the time of the line."""
        return [
            (samples, number(line.get("time")))
            for line in self.steps
            if (samples := number(line.get("samples"))) is not None
        ]

    @property
    def counts_none(self) -> bool:
        """Return whether the rank always reports 0 samples: another rank with the same samples counts them."""
        return bool(self._samples) and not any(samples for samples, _ in self._samples)

    def samples_per_s(self, written: Written | None) -> float | None:
        """Return the speed of a rank by its counts of samples: the median sample's, from one line to the next.

        So slow first steps, evaluations and checkpoints change nothing if lines come more often. Without times in the
        lines, the speed is that between the first write of the file and the last one, with everything in between.
        """
        if not self._samples:
            return None
        if speed := steady_speed([(at, samples) for samples, at in self._samples if at is not None]):
            return speed
        if written is None or written.seconds < LEAST_WRITTEN_S:
            return None
        last, _ = self._samples[-1]
        return (last - written.samples) / written.seconds if last > written.samples else None

    @property
    def epochs_before(self) -> int | None:
        """The number of epochs of earlier runs. `None`: not known."""
        first = whole(self.epochs[0].get("epoch")) if self.epochs else None
        return whole(self.end.get("epochs_before")) if first is None else max(0, first - 1)

    @property
    def accuracy(self) -> float | None:
        """The last accuracy, 0 .. 1; that of an end or an epoch has precedence over other lines."""
        for line in reversed([*self.measured, *self.epochs, self.end]):
            accuracy = number(line.get("accuracy"))
            if accuracy is not None and 0 <= accuracy <= 1:
                return accuracy
        return None

    @property
    def evaluation(self) -> tuple[dict[str, float], Literal["test", "validation"] | None]:
        """The evaluation's metrics and its samples: the test samples, otherwise the last epoch's validation."""
        if metrics := _metrics(self.end.get("test")):
            return metrics, "test"
        # A job without an epoch left to train reports them at its end.
        for line in (self.last_epoch, self.end):
            if metrics := _metrics(line.get("validation")):
                return metrics, "validation"
        return {}, None


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values (at least one) lie, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def mean_share(shares: Iterable[Share]) -> Share:
    """Return the mean of the known shares, which add up to 1. All unknown: the result is, too."""
    known = [share for share in shares if share.known]
    if not known:
        return Share()
    return Share(**{name: statistics.fmean(getattr(share, name) or 0.0 for share in known) for name in PARTS})


def is_name(name: object) -> bool:
    """Return whether a metric can have this name: short and printable."""
    return isinstance(name, str) and 0 < len(name) <= METRIC_NAME_LENGTH and name.isprintable()


def first_named(values: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a mapping with printable names; the first of very many."""
    named = (
        (name, known)
        for name, value in values.items()
        if is_name(name) and (known := number(value)) is not None
    )
    return dict(itertools.islice(named, METRICS_KEPT))


def _metrics(values: object) -> dict[str, float]:
    return first_named({name: value for name, value in inner(values).items() if name != "loss"})
