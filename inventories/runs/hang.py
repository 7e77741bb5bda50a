"""Why a run makes no progress: who waits for whom, as `why --json` prints it and a result has it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

HangVerdict = Literal["hung", "slow", "fine", "unknown"]
OnHang = Literal["report", "stop", "restart"]
"""The action for a run that hangs."""


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A rank that others wait for, and where in the script it is. `None`: not known."""

    rank: int
    node: str
    file: str | None = None
    """Relative to the folder that was sent."""
    line: int | None = None
    function: str | None = None
    since_s: float | None = None
    """For how long the others have waited."""
    place: str | None = None
    """Its part of the model: `stage 2 of 4`. `None`: all of the model, or it is not known."""
    raised: str | None = None
    """The exception that ended its script, while its process continues: `ValueError: no (a.py:5)`. `None`: no
    exception."""


@dataclass(frozen=True, kw_only=True)
class WaitingRank:
    """A rank that waits in a collective."""

    rank: int
    node: str
    collective: str | None = None
    """`all_reduce`, …"""
    sequence: int | None = None
    """The collective's number in its process group."""
    file: str | None = None
    line: int | None = None
    function: str | None = None


@dataclass(frozen=True, kw_only=True)
class RankStacks:
    """The activity of one rank."""

    rank: int
    node: str
    state: str | None
    """The kernel's letter for its process: R, S, D, T, Z. `None`: no process, or it could not be read."""
    begun: bool | None = True
    """Whether it has had a process. `None`: it could not be asked."""
    cpu: float | None
    """The share of a CPU that it used, 1 being all of one."""
    last_collective: str | None
    """`all_reduce #2`, in the process group in which it came last."""
    at: str | None
    """Where in the script it was: `load_batch, data.py:41`."""
    stacks: str
    """Of all its threads, the innermost frame first."""


@dataclass(frozen=True, kw_only=True)
class Hang:
    """The activities of all ranks, compared: the document of `why --json`."""

    run: str
    verdict: HangVerdict
    """`slow`: the run makes progress, and some ranks wait for others longer than they used to."""
    sentence: str
    culprits: tuple[Culprit, ...] = ()
    waiting: tuple[WaitingRank, ...] = ()
    ranks: tuple[RankStacks, ...] = ()
    errors: tuple[str, ...] = ()
    """A sentence for each node that could not be asked."""
    at: str | None = None
    """When the ranks were asked, ISO 8601, UTC."""


class Numbered(Protocol):
    """Has the number of a rank."""

    @property
    def rank(self) -> int:
        """Return the number."""


OneRank = TypeVar("OneRank", bound=Numbered)


Deed = TypeVar("Deed", bound=Hashable)


def alike(ranks: Sequence[OneRank], does: Callable[[OneRank], Deed]) -> list[tuple[Deed, list[OneRank]]]:
    """Return the ranks by what each `does`, the smallest group first."""
    groups: dict[Deed, list[OneRank]] = {}
    for rank in ranks:
        groups.setdefault(does(rank), []).append(rank)
    return sorted(groups.items(), key=lambda group: (len(group[1]), group[1][0].rank))
