"""Test the state of all ranks, from a run's rank records."""

from support import a_run

from inventories.runs.records import RankRecord
from inventories.runs.run import RunNode
from remote.runs.rank_states import SHOWN_AFTER_S, RankStates

RUN = a_run(
    script="train.py",
    nodes=(
        RunNode(name="n-0", rank=0, nproc=2, first_rank=0, run_dir="/r"),
        RunNode(name="n-1", rank=1, nproc=1, first_rank=2, run_dir="/r"),
    ),
)


def record(rank: int, exit_code: int | None = None) -> RankRecord:
    return RankRecord(rank=rank, local_rank=0, pid=1, started_at=1.0, exit_code=exit_code)


def test_rank_states_tell_begin_end_and_nodes_that_wait() -> None:
    states = RankStates(RUN)
    assert (states.any_begun, states.all_begun, states.all_ended) == (False, False, False)
    for rank, node in enumerate(("n-0", "n-0", "n-1")):
        assert not states.all_begun
        states.add(node, record(rank), 0.0)
    assert (states.any_begun, states.all_begun, states.all_ended) == (True, True, False)
    states.add("n-0", record(1, 0), 1.0)
    states.add("n-0", record(0, 0), 2.0)
    assert list(states.waiting_nodes(2.0 + SHOWN_AFTER_S / 2)) == []
    assert list(states.waiting_nodes(2.0 + SHOWN_AFTER_S)) == [
        ("n-0", "ranks 0 and 1 have ended; rank 2 still runs")
    ]
    assert list(states.waiting_nodes(3.0 + SHOWN_AFTER_S)) == [], "said once"
    states.add("n-1", record(2, 0), 9.0)
    assert states.all_ended
    assert list(states.waiting_nodes(99.0)) == []


def test_node_of_a_failed_rank_does_not_wait() -> None:
    states = RankStates(RUN)
    states.add("n-1", record(2, 3), 0.0)
    assert list(states.waiting_nodes(SHOWN_AFTER_S)) == []


def test_rank_that_has_not_begun_or_is_on_a_closed_node_does_not_still_run() -> None:
    states, late_s = RankStates(RUN), 2 * SHOWN_AFTER_S
    for rank in (0, 1):
        states.add("n-0", record(rank, 0), 0.0)
    assert list(states.waiting_nodes(late_s)) == []
    assert not states.all_ended, "rank 2 may begin"
    states.add("n-1", record(2), late_s)
    assert list(states.waiting_nodes(late_s)) == [("n-0", "ranks 0 and 1 have ended; rank 2 still runs")]

    states = RankStates(RUN)
    states.add("n-1", record(2), 0.0)
    for rank in (0, 1):
        states.add("n-0", record(rank, 0), 0.0)
    states.close_node("n-1")
    assert list(states.waiting_nodes(late_s)) == []
    assert states.all_ended
