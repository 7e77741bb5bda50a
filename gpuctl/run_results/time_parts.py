"""The parts of a run's time, by the times in its ranks' lines and in the nodes' records. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from gpuctl import text
from gpuctl.run_results.metric_names import inner, number, step_of
from gpuctl.run_results.rank_metrics import RankMetrics
from inventories.runs.result import FirstStepParts, TrainParts, TrainSummary

JOB_PARTS = ("device", "data", "model")
"""Of the job's start, in its first line."""
RUN_PARTS = ("first_steps", "steps", "evaluation", "checkpoints")
"""Of the job's run, in its last line."""
NEARLY_ALL, NEGLIGIBLE = 0.9, 0.01
"""Of a run's time: nothing is shown where steps took more than the one, and no part that took less than the other."""


def first_step_of(
    metrics: Mapping[int, RankMetrics], launched: Mapping[int, float]
) -> tuple[float | None, FirstStepParts | None]:
    """Return the longest time of a rank from its launch to its first step, seconds, and its parts.

    `launched`: rank → unix time of its node. `None`: not known. A script whose first line is on a later step than 1,
    such as one with a line every 10 steps, does not report its first step.
    """
    seconds = {}
    for rank, launched_at in launched.items():
        lines = metrics.get(rank, RankMetrics())
        first = lines.steps[0] if lines.steps else {}
        # The built-in job always reports its first step, whose number is higher after a resumption.
        is_first = bool(lines.start) or (step_of(first) or 0) <= 1
        if is_first and (at := number(first.get("time"))) is not None:
            seconds[rank] = at - launched_at
    if not seconds or min(seconds.values()) < 0:
        return None, None
    last = max(seconds, key=lambda rank: seconds[rank])
    start = metrics[last].start
    began, known = number(start.get("time")), _seconds(start.get("seconds"), JOB_PARTS)
    if began is None or known is None:
        return round(seconds[last], 3), None
    before = began - launched[last]
    parts = FirstStepParts(
        imports=round(max(0.0, before - sum(known.values())), 3),
        **known,
        step=round(seconds[last] - before, 3),
    )
    return round(seconds[last], 3), parts


def train_parts_of(first: RankMetrics, launched: float | None, ended: float | None) -> TrainParts | None:
    """Return the parts of a run by rank 0's lines. `launched`, `ended`: unix times of its node; `None`: not known."""
    began, over = number(first.start.get("time")), number(first.end.get("time"))
    known = _seconds(first.end.get("parts"), RUN_PARTS)
    if began is None or over is None or launched is None or ended is None or known is None:
        return None
    if began < launched or ended < over:
        return None  # the node's clock was set in between
    return TrainParts(start=round(began - launched, 3), **known, end=round(ended - over, 3))


def time_lines(train: TrainSummary) -> list[tuple[str, str]]:
    """Return a label and `start 4.5 s (imports 3.1 s, …), first steps 0.6 s, steps 10.2 s, …`, without small parts.

    Empty: steps took nearly all the time, or the parts are not known.
    """
    if train.parts is None:
        return []
    parts = asdict(train.parts)
    first = asdict(train.first_step) if train.first_step else {}
    starts = {name: first[name] for name in ("imports", *JOB_PARTS) if name in first}
    if starts:  # of the slowest rank, as its parts in brackets
        parts["start"] = sum(starts.values())
    total = sum(parts.values())
    if total <= 0 or parts["steps"] >= NEARLY_ALL * total:
        return []
    start = _listed(starts, total)
    shown = _listed(parts, total)
    return [
        ("train", shown.replace(",", f" ({start}),", 1) if start and shown.startswith("start") else shown)
    ]


def _listed(parts: Mapping[str, float], total: float) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {text.duration(seconds)}"
        for name, seconds in parts.items()
        if seconds >= NEGLIGIBLE * total
    )


def _seconds(value: object, names: Sequence[str]) -> dict[str, float] | None:
    """Return the seconds of each part, 0 for an absent part. `None`: not known."""
    known = {name: seconds for name in names if (seconds := number(inner(value).get(name))) is not None}
    return {name: known.get(name, 0.0) for name in names} if known else None
