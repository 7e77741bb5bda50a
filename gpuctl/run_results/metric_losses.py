"""The curve of the training loss in the metrics of all ranks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from gpuctl.run_results.metric_names import Line, epoch_of, is_held_out, loss_name, losses_of, step_of
from inventories.runs.run import LossSource

Place = TypeVar("Place", int, float)

POINTS = 64
"""Number of points that are kept of a longer curve, its first and last among them."""


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
