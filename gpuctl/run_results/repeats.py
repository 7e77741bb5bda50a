"""Settings that several runs repeat, with other seeds or unchanged: mean and spread of a measure. Pure."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpuctl.run_results.measures import Measure
from gpuctl.run_results.saved_results import Setting, described_settings, settings_of
from inventories.runs.result import Result
from inventories.text import plural

_SEED = re.compile(r"(?:.*[-_.])?(?:seed|random[-_]state)")


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The runs with one setting."""

    settings: str
    """The settings that not all runs have: `lr 0.1`. Empty: all runs have the same."""
    values: tuple[float, ...]
    """The measure of each run that succeeded with a finite one, the best first."""
    count: int
    """All runs of the setting."""

    @property
    def mean(self) -> float:
        """Return the mean of the values, of which the setting has at least one."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """Return the standard deviation. `None`: the setting has a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def is_seed(setting: Setting) -> bool:
    """Return whether a setting is the seed of random numbers, such as `--seed` or `--random-state`."""
    kind, name = setting
    return kind == "option" and bool(_SEED.fullmatch(name.lower()))


@dataclass(frozen=True, kw_only=True)
class Series:
    """A run's line in a chart of losses."""

    style: int
    """The runs of a setting have the same, so that a chart shows five settings, not twenty runs."""
    legend: str
    """Empty: another run's line stands for the setting."""


def repeats_of(results: Sequence[Result], measure: Measure) -> list[Repeats]:
    """Return the settings with the runs of each, the best mean first, then settings without a value.

    Empty: no setting has two runs with a value.
    """
    repeats = [
        Repeats(
            settings=settings,
            values=tuple(
                value
                for run in sorted((results[at] for at in members), key=measure.key)
                if math.isfinite(measure.key(run)) and (value := measure.value(run)) is not None
            ),
            count=len(members),
        )
        for settings, members in _by_setting(results)
    ]
    if all(len(each.values) < 2 for each in repeats):
        return []
    known = [each for each in repeats if each.values]
    return [
        *sorted(known, key=lambda each: each.mean, reverse=measure.highest),
        *(each for each in repeats if not each.values),
    ]


def series_of(results: Sequence[Result], labels: Sequence[str], best: str | None) -> list[Series]:
    """Return the line of each run. `labels`: of the runs. `best`: id of the best run; it has a legend of its own."""
    settings = _by_setting(results)
    series = [Series(style=at, legend=label) for at, label in enumerate(labels)]
    if not 1 < len(settings) < len(results):
        return series
    for style, (words, members) in enumerate(settings):
        not_best = [at for at in members if results[at].run != best]
        for at in members:
            series[at] = Series(style=style, legend="" if at in not_best[len(members) == 1 :] else labels[at])
        if len(members) > 1:
            series[not_best[0]] = Series(style=style, legend=f"{words} ({plural(len(members), 'run')})")
    return series


def _by_setting(results: Sequence[Result]) -> list[tuple[str, list[int]]]:
    """Return each setting, seeds aside, as text, and the places of its runs."""
    settings = {each: values for each, values in settings_of(results).items() if not is_seed(each)}
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for at, key in enumerate(zip(*settings.values(), strict=True)):
        groups.setdefault(key, []).append(at)
    texts = described_settings(settings, terse=True)
    return [(texts[members[0]], members) for members in groups.values()]
