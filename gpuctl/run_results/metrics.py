"""A job's metrics lines, summarised.

Any script writes these lines: a value may be missing or of a wrong type, and is then not known. Nothing here raises
on them.
"""

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuctl.run_results.curves.script_losses import LossCurve, script_losses
from gpuctl.run_results.metric_names import (
    EVENTS,
    Line,
    loss_of,
    number,
    others_of,
    step_of,
    unusable,
)
from gpuctl.text import clean
from inventories.runs.end_reasons import Reason
from inventories.runs.run import Share, StepMs, TrainSummary, UnusedMetrics
from remote.runs.metrics_lines import MetricsFile

LEAST_WRITTEN_S = 0.1
"""Minimum time for a speed by the writes of a file, s: file times come from a clock with ticks."""
METRICS_KEPT = 32
METRIC_NAME_LENGTH = PLACE_LENGTH = 64
EXAMPLE_LENGTH = 120
"""Characters of a line that was not used, and of the reason."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The growth of a rank's metrics file, as the node saw it."""

    samples: float
    """Samples in the first write."""
    seconds: float
    """From that write to the last."""


def words(value: object) -> str | None:
    """A text that says something, else `None`."""
    return value if isinstance(value, str) and value else None


def _names(value: object) -> tuple[str, ...]:
    """Return the printable names in a list; the first of very many."""
    listed = value if isinstance(value, list) else ()
    return tuple(itertools.islice((name for name in listed if _is_name(name)), METRICS_KEPT))


def whole(value: object) -> int | None:
    """An integer of a size that counts something, else `None`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def failed(lines: Sequence[Line]) -> tuple[Reason, tuple[int, ...]] | None:
    """Return the reason that a rank gives for its end, and the ranks that it waited for, as far as it knows them."""
    record = event(lines, "failed")
    reason = next(
        (reason for reason in (Reason.LOST_PEER, Reason.TIMED_OUT) if record.get("reason") == reason), None
    )
    named = record.get("ranks")
    ranks = (whole(rank) for rank in named) if isinstance(named, list) else ()
    return None if reason is None else (reason, tuple(rank for rank in ranks if rank is not None))


def inner(value: object) -> Line:
    """A mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def events(lines: Sequence[Line], name: str) -> list[Line]:
    """The lines that tell of an event: `start`, `epoch`, `end`, `failed`."""
    return [line for line in lines if isinstance(line, Mapping) and line.get("event") == name]


def event(lines: Sequence[Line], name: str) -> Line:
    """Return the last line of the event. Empty: no such line."""
    matches = events(lines, name)
    return matches[-1] if matches else {}


def _measured(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield the lines that are not the built-in job's on an event."""
    return (line for line in lines if isinstance(line, Mapping) and line.get("event") not in EVENTS)


def steps(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield the lines on a training step."""
    return (line for line in _measured(lines) if step_of(line) is not None)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values (at least one) lie, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def device_of(lines: Sequence[Line]) -> str | None:
    """The rank's device: `cpu`, `cuda:0`."""
    return words(event(lines, "start").get("device"))


def place_of(lines: Sequence[Line]) -> str | None:
    """Return the part of the model that the rank has, as the job reports it: `stage 2 of 4`."""
    place = words(event(lines, "start").get("place"))
    return clean(place, PLACE_LENGTH) if place else None


def step_ms_of(lines: Sequence[Line]) -> StepMs:
    """The rank's time a step: its own summary, else its steps' times, else the time between their lines."""
    summary = inner(event(lines, "end").get("step_ms"))
    p50, p95 = number(summary.get("p50")), number(summary.get("p95"))
    if p50 is not None:
        return StepMs(p50=p50, p95=p95)
    steps_ms = [ms for line in steps(lines) if (ms := number(line.get("step_ms"))) is not None]
    if steps_ms:
        return StepMs(p50=percentile(steps_ms, 50), p95=percentile(steps_ms, 95))
    gaps = _gaps(steps(lines))
    if len(gaps) < 2:
        return StepMs()
    every_step = all(count == 1 for count, _ in gaps)
    apart = [ms / count for count, ms in gaps]
    # A line every ten steps has their mean, without the slowest step.
    return StepMs(p50=percentile(apart, 50), p95=percentile(apart, 95) if every_step else None)


def _gaps(lines: Iterable[Line]) -> list[tuple[float, float]]:
    """From each line to the next: (steps, milliseconds)."""
    marks = [
        (step, at)
        for line in lines
        if (step := step_of(line)) is not None and (at := number(line.get("time"))) is not None
    ]
    return [
        (step - before, (at - earlier) * 1000)
        for (before, earlier), (step, at) in itertools.pairwise(marks)
        if step > before and at >= earlier
    ]


def share_of(lines: Sequence[Line]) -> Share:
    """Return the shares of the rank's time: its own summary, otherwise sums over its steps."""
    summary = inner(event(lines, "end").get("share"))
    parts = {name: number(summary.get(name)) for name in ("compute", "communication", "data")}
    if any(part is not None for part in parts.values()):
        return Share(**parts)
    spent = [
        [number(line.get(f"{name}_ms")) for name in ("compute", "communication", "data")]
        for line in steps(lines)
    ]
    known = [[part for part in parts_ms if part is not None] for parts_ms in spent]
    complete = [parts_ms for parts_ms in known if len(parts_ms) == 3]
    total = sum(sum(parts_ms) for parts_ms in complete)
    # Steps that are CUDA graphs have no parts, and the shares of the steps before them are others.
    if total <= 0 or 2 * len(complete) < len(spent):
        return Share()
    compute, communication, data = (sum(column) / total for column in zip(*complete, strict=True))
    return Share(compute=compute, communication=communication, data=data)


def steps_of(lines: Sequence[Line]) -> int | None:
    """Return the number of steps from the first to the last reported, both included."""
    numbers = [
        int(step) for line in steps(lines) if (step := step_of(line)) is not None and step.is_integer()
    ]
    return max(numbers) - min(numbers) + 1 if numbers else None


def samples_per_s_of(lines: Sequence[Line], written: Written | None) -> float | None:
    """Return the speed of a rank by its counts of samples: the median sample's, from one line to the next.

    So slow first steps, evaluations and checkpoints change nothing if lines come more often. Without times in the
    lines, the speed is that between the first write of the file and the last one, with everything in between.
    """
    points = [
        (samples, number(line.get("time")))
        for line in steps(lines)
        if (samples := number(line.get("samples"))) is not None
    ]
    if not points:
        return None
    timed = [(samples, at) for samples, at in points if at is not None]
    if speed := _steady_speed(timed):
        return speed
    if written is None or written.seconds < LEAST_WRITTEN_S:
        return None
    last, _ = points[-1]
    return (last - written.samples) / written.seconds if last > written.samples else None


def _counts_none(lines: Sequence[Line]) -> bool:
    """Return whether the rank always reports 0 samples: another rank with the same samples counts them."""
    counts = [samples for line in steps(lines) if (samples := number(line.get("samples"))) is not None]
    return bool(counts) and not any(counts)


def _steady_speed(counted: Sequence[tuple[float, float]]) -> float | None:
    """Return the samples a second at which the median sample was taken. `None`: not known.

    `counted`: samples so far, and the time of the line.
    """
    gaps, (before, since) = [], counted[0] if counted else (0.0, 0.0)
    for samples, at in counted[1:]:
        if samples > before and at <= since:
            continue  # lines that were written together
        if samples > before:
            gaps.append(((at - since) / (samples - before), samples - before))
        before, since = samples, at
    gaps.sort()
    passed, total = 0.0, sum(samples for _, samples in gaps)
    for seconds, samples in gaps:
        passed += samples
        if passed >= total / 2:
            return 1 / seconds
    return None


def summary(
    metrics: Mapping[int, Sequence[Line]],
    *,
    world_size: int,
    written: Mapping[int, Written],
) -> TrainSummary:
    """The job's own report, from all ranks' lines, without the times that the nodes' records tell."""
    lines = metrics.get(0, ())
    start, epochs, end = event(lines, "start"), events(lines, "epoch"), event(lines, "end")
    judged, judged_on = _judged(lines)
    curve = _losses(metrics)
    steady = _samples_per_s(metrics, world_size=world_size, written={})
    speed = _samples_per_s(metrics, world_size=world_size, written=written) if steady is None else steady
    return TrainSummary(
        model=words(start.get("model")),
        dataset=words(start.get("dataset")),
        strategy=words(start.get("strategy")),
        device=_device_kind(metrics),
        precision=words(start.get("precision")),
        memory_savers=_names(start.get("memory_savers")),
        graphs=graphs if isinstance(graphs := end.get("graphs"), bool) else None,
        epochs=whole(start.get("epochs")),
        epochs_before=_epochs_before(lines),
        epoch_s=tuple(s for line in epochs if (s := number(line.get("epoch_s"))) is not None),
        samples_per_s=speed,
        samples_per_s_by="writes" if speed is not None and steady is None else None,
        loss=curve.losses,
        loss_at=curve.places,
        loss_by=curve.by,
        loss_name=None if curve.name == "loss" else curve.name,
        accuracy=_accuracy(lines),
        metrics=judged or _last_values(metrics, curve.name),
        judged_on=judged_on,
        perplexity=number((end or event(lines, "epoch")).get("perplexity")),
        tokens_per_s=number(end.get("tokens_per_s")),
        memory_gb=number(end.get("memory_gb")),
        mfu=number(end.get("mfu")),
        step_ms=step_ms_of(lines),
        share=_share(metrics, world_size=world_size),
    )


def _epochs_before(lines: Sequence[Line]) -> int | None:
    """Return the number of epochs of earlier runs. `None`: not known."""
    epochs = events(lines, "epoch")
    first = whole(epochs[0].get("epoch")) if epochs else None
    return whole(event(lines, "end").get("epochs_before")) if first is None else max(0, first - 1)


def mean_share(shares: Iterable[Share]) -> Share:
    """Return the mean of the known shares, which add up to 1. All unknown: the result is, too."""
    known = [share for share in shares if share.known]
    if not known:
        return Share()
    return Share(
        compute=statistics.fmean(share.compute or 0.0 for share in known),
        communication=statistics.fmean(share.communication or 0.0 for share in known),
        data=statistics.fmean(share.data or 0.0 for share in known),
    )


def _share(metrics: Mapping[int, Sequence[Line]], *, world_size: int) -> Share:
    """Return the shares of all ranks together (a slow rank computes while others wait), otherwise rank 0's."""
    mean = mean_share(share_of(metrics.get(rank, ())) for rank in range(world_size))
    return mean if mean.known else share_of(metrics.get(0, ()))


def _device_kind(metrics: Mapping[int, Sequence[Line]]) -> str | None:
    """`cpu` or `cuda`; both names where ranks differ."""
    kinds = {device.split(":")[0] for lines in metrics.values() if (device := device_of(lines))}
    return "+".join(sorted(kinds)) or None


def _samples_per_s(
    metrics: Mapping[int, Sequence[Line]], *, world_size: int, written: Mapping[int, Written]
) -> float | None:
    """The speed of all ranks together: rank 0's own figures, else the sum over all ranks."""
    lines = metrics.get(0, ())
    speed = number(event(lines, "end").get("samples_per_s"))
    if speed is not None:
        return speed
    epochs = [
        (speed, number(line.get("epoch_s")) or 1.0)
        for line in events(lines, "epoch")
        if (speed := number(line.get("samples_per_s"))) is not None
    ]
    if epochs:
        return sum(speed * taken_s for speed, taken_s in epochs) / sum(taken_s for _, taken_s in epochs)
    counting = [rank for rank in range(world_size) if not _counts_none(metrics.get(rank, ()))]
    speeds = [samples_per_s_of(metrics.get(rank, ()), written.get(rank)) for rank in counting]
    known = [speed for speed in speeds if speed is not None]
    # The speed of some ranks is not the speed of all of them.
    return sum(known) if known and len(known) == len(counting) else None


def _accuracy(lines: Sequence[Line]) -> float | None:
    """Return the last accuracy, 0 .. 1; that of an end or an epoch has precedence over other lines."""
    for line in reversed([*_measured(lines), *events(lines, "epoch"), event(lines, "end")]):
        accuracy = number(line.get("accuracy"))
        if accuracy is not None and 0 <= accuracy <= 1:
            return accuracy
    return None


def _judged(lines: Sequence[Line]) -> tuple[dict[str, float], Literal["test", "validation"] | None]:
    """Return the evaluation's metrics and its samples: the test samples, otherwise the last epoch's validation."""
    if metrics := _metrics(event(lines, "end").get("test")):
        return metrics, "test"
    # A job without an epoch left to train reports them at its end.
    for name in ("epoch", "end"):
        if metrics := _metrics(event(lines, name).get("validation")):
            return metrics, "validation"
    return {}, None


def _metrics(values: object) -> dict[str, float]:
    """Return the numbers of a mapping with printable names; the first of very many."""
    named = (
        (name, known)
        for name, value in inner(values).items()
        if name != "loss" and _is_name(name) and (known := number(value)) is not None
    )
    return dict(itertools.islice(named, METRICS_KEPT))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= METRIC_NAME_LENGTH and name.isprintable()


def _losses(metrics: Mapping[int, Sequence[Line]]) -> LossCurve:
    """Return the losses of the epochs' ends that rank 0 reports, else the losses of other lines."""
    ends = [line for line in events(metrics.get(0, ()), "epoch") if loss_of(line) is not None]
    if ends:
        numbers = [whole(line.get("epoch")) for line in ends]
        known = tuple(number for number in numbers if number is not None)
        losses = tuple(loss for line in ends if (loss := loss_of(line)) is not None)
        return LossCurve(places=known if len(set(known)) == len(losses) else (), losses=losses, by="epoch")
    curve = script_losses({rank: list(_measured(lines)) for rank, lines in metrics.items()})
    if curve.losses:
        return curve
    last = (loss_of(event(metrics[rank], "end")) for rank in sorted(metrics))
    return LossCurve(losses=tuple(loss for loss in last if loss is not None)[:1])


def _last_values(metrics: Mapping[int, Sequence[Line]], loss: str | None) -> dict[str, float]:
    """Return the last of each value that a script measured, of the lowest rank that did."""
    for rank in sorted(metrics):
        if event(metrics[rank], "start"):
            continue  # the built-in job names its metrics
        values: dict[str, float] = {}
        for line in _measured(metrics[rank]):
            values |= others_of(line, loss)
        named = {
            name: value for name, value in values.items() if _is_name(name) and number(value) is not None
        }
        if named:
            return dict(itertools.islice(named.items(), METRICS_KEPT))
    return {}


def unused(metrics: Mapping[int, MetricsFile]) -> UnusedMetrics | None:
    """Return the number of lines of all ranks that are not used, the first one, and why.

    Returns:
        `None` if every line is used.
    """
    first: UnusedMetrics | None = None
    total = 0
    for rank in sorted(metrics):
        file = metrics[rank]
        reasons = [(line, why) for line in file.lines if (why := unusable(line))]
        total += file.unreadable + len(reasons)
        if first is None and (file.unreadable or reasons):
            line, why = reasons[0] if reasons else ({}, "")
            example = file.example or json.dumps(line, ensure_ascii=False)
            first = UnusedMetrics(
                lines=0,
                rank=rank,
                example=clean(example, EXAMPLE_LENGTH),
                why=clean(file.why or why, EXAMPLE_LENGTH),
            )
    return None if first is None else replace(first, lines=total)
