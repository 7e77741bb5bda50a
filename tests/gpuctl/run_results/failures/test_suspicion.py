"""Test which of several ends caused the others: the order of suspicion."""

import math
from dataclasses import replace
from typing import Any

import pytest

from gpuctl.run_results.failures.failures import DYING, SUSPICION, End, which_began
from inventories.runs.end_reasons import Ended, Reason


def end(reason: Reason, *, rank: int | None = None, at: float = 10.0, **changes: Any) -> End:
    code = {Reason.TERMINATED: -15, Reason.SIGNAL: -9, Reason.UNKNOWN: None}.get(reason, 1)
    where = "a rank" if rank is not None else "a node"
    return End(ended=Ended(reason=reason, exit_code=code), at=at, node=where, rank=rank, **changes)


OF_RANKS = (
    Reason.EXIT_CODE, Reason.SIGNAL, Reason.OUT_OF_MEMORY, Reason.MODULE_NOT_FOUND, Reason.THREAD_AT_EXIT,
    Reason.NOT_STARTED, Reason.UNKNOWN, Reason.TIMED_OUT, Reason.TERMINATED, Reason.LOST_PEER,
)  # fmt: skip
OF_NODES = (Reason.NODE_LOST, Reason.REBOOTED, Reason.DISK_FULL, Reason.RAY_ENDED, Reason.LAUNCHER_ENDED)


def test_suspicion_of_a_dying_rank_is_between_those_of_reasons() -> None:
    assert DYING not in SUSPICION.values()


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (cause, effect)
        for cause in OF_RANKS
        for effect in (Reason.UNKNOWN, Reason.TIMED_OUT, Reason.TERMINATED, Reason.LOST_PEER)
        if SUSPICION[cause] < SUSPICION[effect]
    ],
)
def test_which_began_follows_the_table_whatever_the_ranks_numbers(cause: Reason, effect: Reason) -> None:
    for first in (0, 1):
        ends = (end(cause, rank=first), end(effect, rank=1 - first, at=10.1))
        assert which_began(ends) is ends[0]
        assert which_began(ends[::-1]) is ends[0]


@pytest.mark.parametrize("of_node", OF_NODES)
@pytest.mark.parametrize("of_rank", OF_RANKS)
def test_which_began_weighs_nodes_against_ranks(of_rank: Reason, of_node: Reason) -> None:
    rank, node = end(of_rank, rank=0), end(of_node, at=9.0)
    assert which_began((rank, node)) is (rank if SUSPICION[of_rank] < SUSPICION[of_node] else node)


@pytest.mark.parametrize("unknown_at", [9.0, 11.0, math.inf])
def test_which_began_suspects_unknown_end_before_sigterm(unknown_at: float) -> None:
    unknown = end(Reason.UNKNOWN, rank=1, at=unknown_at)
    assert which_began((end(Reason.TERMINATED, rank=0), unknown)) is unknown


def test_which_began_suspects_sigterm_that_came_before_other_ends() -> None:
    ends = (end(Reason.TERMINATED, rank=0, at=9.0), end(Reason.EXIT_CODE, rank=1, at=9.5))
    assert which_began(ends) is ends[0]
    ends = (end(Reason.TERMINATED, rank=0, at=9.0), end(Reason.EXIT_CODE, rank=1, at=8.5))
    assert which_began(ends) is ends[1]


def test_which_began_finds_rank_that_was_stopped_while_it_died() -> None:
    echo = end(Reason.LOST_PEER, rank=0)
    dying = end(Reason.EXIT_CODE, rank=1, at=10.5, stopped=True, own_error=True)
    assert which_began((echo, dying)) is dying
    assert which_began((dying,)) is None, "nobody noticed its end before the stop"
    assert which_began((echo, replace(dying, own_error=False))) is echo
