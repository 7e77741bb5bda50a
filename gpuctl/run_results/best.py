"""The best of several runs, by the measure that they have. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuctl import text
from gpuctl.run_results.metric_names import is_held_out, kind_of
from gpuctl.run_results.saved_results import differences
from inventories.runs.labels import MAX_NAME
from inventories.runs.run import Result
from inventories.text import plural


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number by which runs are ranked."""

    name: str
    value: Callable[[Result], float | None]
    """Of a run; `None`: the run does not have it."""
    shown: Callable[[float], str]
    highest: bool = False
    """Whether a higher number is better."""

    def key(self, result: Result) -> float:
        """Return a number that is lowest for the best run, and infinite for a run without a usable number."""
        value = self.value(result)
        if result.status != "succeeded" or value is None or not math.isfinite(value):
            return math.inf
        return -value if self.highest else value


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best of several runs."""

    result: Result
    measure: Measure
    next: Result | None
    """The best of the others. `None`: no other run has the measure."""
    count: int
    """Runs that have the measure."""


def shown(measure: Measure, result: Result) -> str:
    """Return a run's number with the measure's name: `loss 0.129`."""
    value = measure.value(result)
    return f"{measure.name} {text.UNKNOWN if value is None else measure.shown(value)}"


def best_of(results: Sequence[Result]) -> Best | None:
    """Return the best of the runs that succeeded, by the measure that most of them have.

    Of several such measures by the first of: accuracy, perplexity, a loss on held-out data, the last training loss.

    Returns:
        `None` if no run that succeeded has a measure.
    """
    ranked: list[Result] = []
    by: Measure | None = None
    for measure in _measures(results):
        having = [result for result in results if math.isfinite(measure.key(result))]
        if len(having) > len(ranked):
            ranked, by = sorted(having, key=measure.key), measure
    if by is None:
        return None
    return Best(result=ranked[0], measure=by, next=ranked[1] if len(ranked) > 1 else None, count=len(ranked))


def best_sentence(best: Best, results: Sequence[Result]) -> str:
    """Return `best of 5 runs: fast with loss 0.129 (lr 0.5); next: slow with loss 0.168 (lr 0.3)`."""
    line = (
        f"best of {plural(best.count, 'run')}: {label(best.result)} with {shown(best.measure, best.result)}"
    )
    if best.next is not None:
        of_best, of_next = (
            f" ({settings})" * bool(settings)
            for settings in differences([best.result, best.next], terse=True)
        )
        line += f"{of_best}; next: {label(best.next)} with {shown(best.measure, best.next)}{of_next}"
    ranked = [result for result in results if math.isfinite(best.measure.key(result))]
    if len({(result.script, result.train.dataset, result.train.judged_on) for result in ranked}) > 1:
        line += ". The runs have different scripts or data"
    return text.clean(line)


def label(result: Result) -> str:
    """Return the name of a run, or else its id."""
    return text.clean(result.name or result.run, MAX_NAME)


def _measures(results: Sequence[Result]) -> list[Measure]:
    """Return the measures that runs may have, in their order of precedence."""
    held_out = dict.fromkeys(
        name
        for result in results
        for name in result.train.metrics
        if kind_of(name) == "loss" and is_held_out(name)
    )
    losses = [result.train.loss_name for result in results if result.train.loss]
    names = sorted(set(losses), key=lambda name: (-losses.count(name), name or ""))
    return [
        Measure(
            name="accuracy", value=lambda result: result.train.accuracy, shown=text.percent, highest=True
        ),
        Measure(name="perplexity", value=lambda result: result.train.perplexity, shown=text.metric),
        *(Measure(name=name, value=_metric(name), shown=text.metric) for name in held_out),
        *(Measure(name=name or "loss", value=_last_loss(name), shown=text.loss) for name in names),
    ]


def _metric(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.train.metrics.get(name)


def _last_loss(name: str | None) -> Callable[[Result], float | None]:
    """Return the function of a run's last loss; `None` for a loss of another name."""
    return lambda result: (
        result.train.loss[-1] if result.train.loss and result.train.loss_name == name else None
    )
