"""The measures by which runs can be ranked. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuctl import text
from gpuctl.run_results.metric_names import is_held_out, kind_of
from inventories.runs.result import Result


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number by which runs are ranked: the last of each run."""

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


def measures_of(results: Sequence[Result]) -> list[Measure]:
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
