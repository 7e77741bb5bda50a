"""The metrics of a run's ranks, summarised, and the curve of their training loss. Pure."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from gpuctl.run_results.metric_names import (
    Line,
    epoch_of,
    is_held_out,
    loss_name,
    loss_of,
    losses_of,
    number,
    others_of,
    step_of,
    unusable,
    whole,
    words,
)
from gpuctl.run_results.rank_metrics import (
    METRICS_KEPT,
    RankMetrics,
    Written,
    first_named,
    is_name,
    mean_share,
)
from gpuctl.text import clean
from inventories.runs.result import LossSource, TrainSummary, UnusedMetrics

EXAMPLE_LENGTH = 120
"""Characters of a line that was not used, and of the reason."""
POINTS = 64
"""Number of points that are kept of a longer curve, its first and last among them."""
Place = TypeVar("Place", int, float)


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Losses and their places."""

    losses: tuple[float, ...] = ()
    places: tuple[float, ...] = ()
    by: Literal["epoch", "step", "line"] | None = None
    """Unit of the places. `line`: the lines name neither epoch nor step, and are counted."""
    name: str | None = None
    """Name of the loss in the lines."""
    source: LossSource | None = None
    """`None`: metrics."""


def summary(
    metrics: Mapping[int, RankMetrics],
    *,
    world_size: int,
    written: Mapping[int, Written],
    losses: LossCurve | None = None,
) -> TrainSummary:
    """Return the job's own report, from all ranks' lines, without the times that the nodes' records have.

    `losses`: of other files of the run, for metrics without losses.
    """
    ranks = [metrics.get(rank, RankMetrics()) for rank in range(world_size)]
    first = ranks[0]
    start, end = first.start, first.end
    judged, judged_on = first.evaluation
    curve = _losses(metrics)
    if losses is not None and not curve.losses:
        curve = losses
    steady = _samples_per_s(ranks, {})
    speed = _samples_per_s(ranks, written) if steady is None else steady
    share = mean_share(rank.share for rank in ranks)
    savers = start.get("memory_savers")
    devices = {rank.device.split(":")[0] for rank in metrics.values() if rank.device}
    return TrainSummary(
        model=words(start.get("model")),
        dataset=words(start.get("dataset")),
        strategy=words(start.get("strategy")),
        device="+".join(sorted(devices)) or None,
        precision=words(start.get("precision")),
        memory_savers=tuple(filter(is_name, savers if isinstance(savers, list) else ()))[:METRICS_KEPT],
        graphs=graphs if isinstance(graphs := end.get("graphs"), bool) else None,
        epochs=whole(start.get("epochs")),
        epochs_before=first.epochs_before,
        epoch_s=tuple(s for line in first.epochs if (s := number(line.get("epoch_s"))) is not None),
        samples_per_s=speed,
        samples_per_s_by="writes" if speed is not None and steady is None else None,
        loss=curve.losses,
        loss_at=curve.places,
        loss_from=curve.source,
        loss_by=curve.by,
        loss_name=None if curve.name == "loss" else curve.name,
        accuracy=first.accuracy,
        metrics=judged or _last_values(metrics, curve.name),
        judged_on=judged_on,
        perplexity=number((end or first.last_epoch).get("perplexity")),
        tokens_per_s=number(end.get("tokens_per_s")),
        memory_gb=number(end.get("memory_gb")),
        mfu=number(end.get("mfu")),
        step_ms=first.step_ms,
        # Of all ranks together: a slow rank computes while others wait.
        share=share if share.known else first.share,
    )


def _samples_per_s(ranks: Sequence[RankMetrics], written: Mapping[int, Written]) -> float | None:
    """The speed of all ranks together: rank 0's own figures, else the sum over all ranks."""
    first = ranks[0]
    speed = number(first.end.get("samples_per_s"))
    if speed is not None:
        return speed
    epochs = [
        (speed, number(line.get("epoch_s")) or 1.0)
        for line in first.epochs
        if (speed := number(line.get("samples_per_s"))) is not None
    ]
    if epochs:
        return sum(speed * taken_s for speed, taken_s in epochs) / sum(taken_s for _, taken_s in epochs)
    speeds = [
        metrics.samples_per_s(written.get(rank))
        for rank, metrics in enumerate(ranks)
        if not metrics.counts_none
    ]
    known = [speed for speed in speeds if speed is not None]
    # The speed of some ranks is not the speed of all of them.
    return sum(known) if known and len(known) == len(speeds) else None


def has_losses(metrics: Mapping[int, RankMetrics]) -> bool:
    """Return whether a summary of these metrics has losses."""
    return any(rank.has_losses for rank in metrics.values()) or bool(_epoch_losses(metrics))


def _epoch_losses(metrics: Mapping[int, RankMetrics]) -> list[tuple[int | None, float]]:
    """Return the losses of the epochs' ends that rank 0 reports, with the numbers of the epochs."""
    epochs = metrics[0].epochs if 0 in metrics else ()
    return [(whole(line.get("epoch")), loss) for line in epochs if (loss := loss_of(line)) is not None]


def _losses(metrics: Mapping[int, RankMetrics]) -> LossCurve:
    """Return the losses of the epochs' ends that rank 0 reports, else the losses of other lines."""
    if ends := _epoch_losses(metrics):
        known = tuple(epoch for epoch, _ in ends if epoch is not None)
        places = known if len(set(known)) == len(ends) else ()
        return LossCurve(places=places, losses=tuple(loss for _, loss in ends), by="epoch")
    curve = script_losses({rank: metrics[rank].measured for rank in metrics})
    if curve.losses:
        return curve
    last = (loss_of(metrics[rank].end) for rank in sorted(metrics))
    return LossCurve(losses=tuple(loss for loss in last if loss is not None)[:1])


def _last_values(metrics: Mapping[int, RankMetrics], loss: str | None) -> dict[str, float]:
    """Return the last of each value that a script measured, of the lowest rank that did."""
    for rank in sorted(metrics):
        if metrics[rank].start:
            continue  # the built-in job names its metrics
        values: dict[str, float] = {}
        for line in metrics[rank].measured:
            values |= others_of(line, loss)
        if named := first_named(values):
            return named
    return {}


def unused(metrics: Mapping[int, RankMetrics]) -> UnusedMetrics | None:
    """Return the number of lines of all ranks that are not used, the first one, and why.

    Returns:
        `None` if every line is used.
    """
    first: UnusedMetrics | None = None
    total = 0
    for rank in sorted(metrics):
        file = metrics[rank].file
        reasons = [(line, why) for line in metrics[rank].measured if (why := unusable(line))]
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


def script_losses(metrics: Mapping[int, Sequence[Line]]) -> LossCurve:
    """Return the training loss of the lowest rank that reports one; a loss on held-out data if no rank does."""
    held_out = LossCurve()
    for rank in sorted(metrics):
        losses = [losses_of(line) for line in metrics[rank]]
        name = loss_name(Counter(name for values in losses for name in values))
        if name is None or (held_out.losses and is_held_out(name)):
            continue
        lines = zip(metrics[rank], losses, strict=True)
        curve = _curve(name, [(line, values[name]) for line, values in lines if name in values])
        if not is_held_out(name):
            return curve
        held_out = curve
    return held_out


def _curve(name: str, losses: Sequence[tuple[Line, float]]) -> LossCurve:
    """Return the curve by epochs, else by steps, else by lines: the first of them that has several points."""
    points = [(step_of(line), epoch_of(line), loss) for line, loss in losses]
    of_epochs = [(epoch, loss) for step, epoch, loss in points if step is None and epoch is not None]
    of_steps = [(epoch, loss) for step, epoch, loss in points if step is not None and epoch is not None]
    curves: tuple[tuple[Literal["epoch", "step", "line"], dict[float, float]], ...] = (
        ("epoch", _means(of_epochs)),
        ("epoch", _means(of_steps) if all(epoch.is_integer() for epoch, _ in of_steps) else {}),
        ("step", dict(_counted_on([(step, loss) for step, _, loss in points if step is not None]))),
        ("line", {float(at): loss for at, (_, _, loss) in enumerate(points, start=1)}),
    )
    by, curve = next(
        # An only epoch that is not the first one is that of a run which resumes another.
        (
            (by, curve)
            for by, curve in curves
            if len(curve) > 1 or (by == "epoch" and max(curve, default=0) > 1)
        ),
        next((by, curve) for by, curve in curves if curve),
    )
    places = thinned(sorted(curve))
    return LossCurve(
        losses=tuple(curve[place] for place in places),
        places=tuple(int(place) if place.is_integer() else place for place in places),
        by=by,
        name=name,
    )


def _means(points: Sequence[tuple[float, float]]) -> dict[float, float]:
    """Return the mean loss of each place."""
    losses: dict[float, list[float]] = {}
    for place, loss in points:
        losses.setdefault(place, []).append(loss)
    return {place: sum(some) / len(some) for place, some in losses.items()}


def _counted_on(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield steps and losses; step numbers that start again, as in the next epoch, are counted on."""
    before = last = 0.0
    for step, loss in points:
        if step < last:
            before += last + 1
        last = step
        yield before + step, loss


def thinned(points: Sequence[Place]) -> tuple[Place, ...]:
    """Return at most POINTS of them, evenly, with the first and the last."""
    if len(points) <= POINTS:
        return tuple(points)
    return tuple(points[round(at * (len(points) - 1) / (POINTS - 1))] for at in range(POINTS))
