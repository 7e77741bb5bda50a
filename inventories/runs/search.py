"""The result of a search for hyperparameters: its trials, the best first."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self

Goal = Literal["max", "min"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of a search."""

    trial: int
    """Its number, in the order in which they began."""
    params: dict[str, Any]
    metrics: dict[str, float]
    """The numbers in its last report."""
    value: float | None
    """The value that ranks the trials. `None`: the trial reported no value."""
    status: str
    """`running`, `done`, `failed` or `stopped`."""
    reports: int
    seconds: float
    node: str | None = None
    """The address of the node that it ran on. `None`: not known."""
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Search:
    """The result of a search."""

    metric: str
    mode: Goal
    best: Trial | None
    """The trial with the best value. `None`: no trial reported a value."""
    trials: tuple[Trial, ...]
    """The best first; trials without a value last."""

    @classmethod
    def of(cls, metric: str, mode: Goal, trials: Iterable[Trial]) -> Self:
        """A search with its trials in their order."""

        def key(trial: Trial) -> tuple[bool, float]:
            value = trial.value
            return (True, 0.0) if value is None else (False, -value if mode == "max" else value)

        ordered = tuple(sorted(trials, key=key))
        best = ordered[0] if ordered and ordered[0].value is not None else None
        return cls(metric=metric, mode=mode, best=best, trials=ordered)


@dataclass(frozen=True, kw_only=True)
class TrialsFile:
    """The first node's record of a search in progress (`artifacts/trials.json`)."""

    metric: str
    mode: Goal
    trials: tuple[Trial, ...] = ()
