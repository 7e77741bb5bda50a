"""The best of several runs, by the measure that they have. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuctl import text
from gpuctl.run_results.measures import Measure, measures_of
from gpuctl.run_results.repeats import Repeats, is_seed, repeats_of
from gpuctl.run_results.saved_results import descriptions_of, phrase, settings_of
from inventories.runs.result import Result
from inventories.text import plural

RUN_WIDTH = 160
"""Characters of a run with its settings."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best of several runs."""

    measure: Measure
    ranked: tuple[Result, ...]
    """The runs that have the measure, the best first."""

    @property
    def result(self) -> Result:
        """Return the best run."""
        return self.ranked[0]

    def shown(self, result: Result) -> str:
        """Return a run's number: `0.129`."""
        value = self.measure.value(result)
        return text.UNKNOWN if value is None else self.measure.shown(value)


def best_of(results: Sequence[Result]) -> Best | None:
    """Return the best of the runs that succeeded, by the measure that most of them have.

    Of several such measures by the first of: accuracy, perplexity, a loss on held-out data, the training loss. Each
    is the last of the run, which belongs to the model that the run left.

    Returns:
        `None` if no run that succeeded has a measure.
    """
    best: Best | None = None
    for measure in measures_of(results):
        having = [result for result in results if math.isfinite(measure.key(result))]
        if len(having) > (len(best.ranked) if best else 0):
            best = Best(measure=measure, ranked=tuple(sorted(having, key=measure.key)))
    return best


def best_sentence(best: Best, results: Sequence[Result]) -> str:
    """Return `best of 5 runs by last loss: fast (lr 0.5) with 0.129; next: slow (lr 0.3) with 0.168`.

    Then the means of repeated settings, or else the settings that the best runs share. Numbers that look alike are
    equal: `fast with 0.129; equal: slow and 2 more runs`.
    """
    ranked = best.ranked
    first, second, *_ = [*(text.shorten(run, RUN_WIDTH) for run in descriptions_of(ranked)), ""]
    line = f"best of {plural(len(ranked), 'run')} by last {best.measure.name}: {first} with {best.shown(ranked[0])}"
    equal = [best.shown(run) for run in ranked].count(best.shown(ranked[0])) - 1
    if equal:
        line += f"; equal: {second}" + f" and {plural(equal - 1, 'more run')}" * (equal > 1)
    elif len(ranked) > 1:
        line += f"; next: {second} with {best.shown(ranked[1])}"
    if repeats := [each for each in repeats_of(results, best.measure) if each.values]:
        line += f". Best mean over repeated runs: {_means_text(repeats, best.measure)}"
    elif shared := _shared_by_best(ranked):
        line += f". {shared}"
    if len({(result.script, result.train.dataset, result.train.judged_on) for result in ranked}) > 1:
        line += ". The runs have different scripts or data"
    return text.clean(line)


def _means_text(repeats: Sequence[Repeats], measure: Measure) -> str:
    """Return the two best settings with their means, and whether these lie within the spread of either."""
    first = repeats[0]
    line = _mean_text(first, measure)
    for second in repeats[1:2]:
        equal = measure.shown(first.mean) == measure.shown(second.mean)
        line += f"; {'equal' if equal else 'next'}: {_mean_text(second, measure)}"
        if not equal and abs(first.mean - second.mean) <= max(first.spread or 0.0, second.spread or 0.0):
            line += ", which is within the spread"
    return line


def _mean_text(repeats: Repeats, measure: Measure) -> str:
    """Return a setting with its mean and spread: `lr 0.1 with 0.107 ± 0.020 (4 runs)`."""
    spread = "" if repeats.spread is None else f" ± {measure.shown(repeats.spread)}"
    mean = f"{measure.shown(repeats.mean)}{spread} ({plural(len(repeats.values), 'run')})"
    return f"{repeats.settings or 'all runs'} with {mean}"


def _shared_by_best(ranked: Sequence[Result]) -> str:
    """Return `The 4 best have lr 0.1`: the settings that the most of the best runs share. Empty: no two share one."""
    shared: dict[str, int] = {}
    for setting, values in settings_of(ranked).items():
        if len(set(values)) > 1 and not is_seed(setting):
            best = next(at for at, value in enumerate(values) if value != values[0])
            shared[phrase(setting, values[0], values)] = best
    count = max(shared.values(), default=0)
    settings = ", ".join(setting for setting, best in shared.items() if best == count)
    return f"The {count} best have {settings}" if count > 1 else ""
