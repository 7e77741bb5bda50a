"""Test which failure came first, from records as real runs leave them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import a_run

from gpuctl.run_results.evidence import Evidence
from gpuctl.run_results.failures.failures import SUSPICION, Failure, failed_first, first_failure, headline
from gpuctl.run_results.failures.rank_end import rank_end
from gpuctl.run_results.metric_names import Line
from gpuctl.run_results.rank_metrics import RankMetrics
from gpuctl.run_results.result import result_of
from inventories.runs.end_reasons import STOPS, Ended, Reason
from inventories.runs.records import NodeRecord, RankRecord
from inventories.runs.run import Run, RunNode
from remote.end_sentences import sentence
from remote.runs.metrics_lines import MetricsFile

BOOM = 'starting\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: boom\n'
PEER = (
    "Traceback (most recent call last):\n  ...\n"
    "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:14253: "
    "Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application.\n"
)
CONNECT = (
    "Traceback (most recent call last):\n  ...\nRuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/"
    "gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: No route to host, remote=[10.0.0.2]:49558\n"
)
NCCL_PEER = (
    "Traceback (most recent call last):\n  ...\ntorch.distributed.DistBackendError: NCCL error in: "
    "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network error, "
    "NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer gpu-0<49558>\n"
)
RESET = (
    "Traceback (most recent call last):\n  ...\ntorch.distributed.DistNetworkError: Failed to recv, got 0 bytes. "
    "Connection was likely closed. Did the remote server shutdown or crash?\n"
)
TERMINATED = "Traceback (most recent call last):\n  ...\ntorch...SignalException: Process 7 got signal: 15\n"


def run(*offsets: float, nproc: int = 1) -> Run:
    return a_run(
        script="train.py",
        nodes=tuple(
            RunNode(
                name=f"node-{n}",
                rank=n,
                nproc=nproc,
                first_rank=n * nproc,
                run_dir="/r",
                clock_offset_s=offset,
            )
            for n, offset in enumerate(offsets)
        ),
    )


def ended(rank: int, code: int | None, at: float | None = 10.0, local_rank: int = 0) -> RankRecord:
    return RankRecord(rank=rank, local_rank=local_rank, pid=1, started_at=0.0, ended_at=at, exit_code=code)


def node(
    number: int,
    code: int | None = 1,
    *,
    stopped: bool = False,
    stopped_at: float | None = None,
    ended: Ended | None = None,
    why: Reason = Reason.STOPPED,
) -> NodeRecord:
    """Return a node's record; `why` it was stopped, where it was."""
    stopped = stopped or stopped_at is not None
    return NodeRecord(
        node=f"node-{number}",
        launcher="torchrun",
        exit_code=code,
        ended_at=12.0,
        stopped=stopped,
        stopped_at=stopped_at,
        ended=ended or (Ended(reason=why) if stopped else None),
    )


LOST = Ended(reason=Reason.UNREACHABLE, detail="the node was lost")
RAY_ENDED = Ended(reason=Reason.RAY_ENDED, detail="killed")
REBOOTED = Ended(reason=Reason.REBOOTED)


def evidence_of(
    run: Run,
    ranks: Mapping[str, Sequence[RankRecord]],
    nodes: Sequence[NodeRecord],
    tails: Mapping[int, str],
    lines: Mapping[int, list[dict[str, object]]] | None = None,
) -> Evidence:
    metrics = {rank: RankMetrics.of(MetricsFile(lines=of_rank)) for rank, of_rank in (lines or {}).items()}
    return Evidence(
        folder=Path("/home/runs/r"), run=run, ranks=ranks, nodes=nodes, log_tails=tails, metrics=metrics
    )


def failure_of(*parts: Any) -> Failure | None:
    return first_failure(evidence_of(*parts))


def ending_of(
    ranks: Mapping[str, Sequence[RankRecord]], nodes: Sequence[NodeRecord], tails: Mapping[int, str]
) -> tuple[str, Reason | None]:
    result = result_of(evidence_of(run(0.0, 0.0), ranks, nodes, tails))
    return result.status, result.reason


def first(
    *ranks: RankRecord,
    nodes: tuple[NodeRecord, ...],
    tails: dict[int, str] | None = None,
    told: dict[int, Line] | None = None,
    offsets: tuple[float, ...] = (0.0, 0.0),
) -> tuple[int | None, str | None, str, int | None] | None:
    lines = {rank: [line] for rank, line in (told or {}).items()}
    of = {f"node-{rank.rank}": [rank] for rank in ranks}
    result = failure_of(run(*offsets), of, nodes, tails or {}, lines)
    return result and (result.error.rank, result.error.node, result.error.message, result.exit_code)


def test_first_failure_is_none_when_all_ranks_succeed() -> None:
    assert first(ended(0, 0), ended(1, 0), nodes=(node(0, 0), node(1, 0))) is None


KILLED = "killed, it is not known by what; running out of memory is the usual cause"


@pytest.mark.parametrize(
    "nodes",
    [
        (node(0), node(1)),
        # The first node waits for its driver, and is then stopped as the other has failed.
        (node(0, stopped=True), node(1)),
    ],
)
def test_first_failure_blames_earliest_rank_without_exit_code(nodes: tuple[NodeRecord, NodeRecord]) -> None:
    assert first(ended(0, None, 10.0), ended(1, None, 10.3), nodes=nodes) == (0, "node-0", KILLED, None)
    assert first(ended(0, None, 10.3), ended(1, None, 10.0), nodes=nodes) == (1, "node-1", KILLED, None)
    # Ray may end the others once the first is gone; a rank that had reported the loss by then is no cause.
    report = first(ended(0, None, 10.1), ended(1, None, 10.0), nodes=nodes, tails={1: PEER})
    assert report == (0, "node-0", KILLED, None)
    # A rank that only reports the peer's loss is not the cause; a rank with another error is.
    echo = first(ended(0, 1, 10.3), ended(1, None, 10.4), nodes=nodes, tails={0: PEER})
    assert echo == (1, "node-1", KILLED, None)
    local = first(ended(0, 3, 10.0), ended(1, None, 10.4), nodes=nodes, tails={0: BOOM})
    assert local == (0, "node-0", "exit status 3: RuntimeError: boom", 3)


def test_first_failure_ignores_stopped_ranks_without_exit_code() -> None:
    stopped = (node(0, stopped=True), node(1, stopped=True))
    assert first(ended(0, None, 10.0), ended(1, None, 10.1), nodes=stopped) is None


def test_first_failure_ignores_exit_status_after_stop() -> None:
    stopped = (node(0, stopped_at=10.0), node(1, stopped_at=10.0))
    assert first(ended(0, 1, 10.2), ended(1, 15, 10.3), nodes=stopped, tails={0: BOOM}) is None
    # The rank failed before the stop, which came too late.
    assert first(ended(0, 1, 9.9), ended(1, 15, 10.3), nodes=stopped, tails={0: BOOM}) == (
        0,
        "node-0",
        "exit status 1: RuntimeError: boom",
        1,
    )
    # Node 1 learns of the stop later than its rank does.
    late = (node(0, stopped_at=10.0), node(1, stopped_at=10.4))
    assert first(ended(0, 1, 10.2), ended(1, 1, 10.3), nodes=late, tails={1: PEER}) is None


def test_first_failure_corrects_stop_time_for_clock_offset() -> None:
    nodes = (node(0), node(1, stopped_at=10.0, why=Reason.PEER_FAILED))
    killed = ended(0, -9, 10.0)
    assert first(killed, ended(1, -15, 10.1), nodes=nodes, offsets=(-0.4, 0.0)) == (
        0,
        "node-0",
        "killed by SIGKILL; running out of memory is the usual cause",
        -9,
    )


def test_first_failure_blames_lost_node_not_its_peer_rank() -> None:
    tail = (
        "error: Rank 1 lost another rank (Read error [10.0.0.1]:33170: Connection reset by peer). Look for it"
    )
    lost = (node(0, None, ended=LOST), node(1, stopped=True))
    report = {1: {"event": "failed", "reason": "lost_peer", "ranks": []}}
    assert first(ended(1, 1, 10.0), nodes=lost, tails={1: tail}, told=report) == (
        None,
        "node-0",
        "the node was lost",
        None,
    )


def test_first_failure_blames_machine_that_was_shut_down() -> None:
    ended_by_it = (node(0, stopped_at=10.1), node(1, ended=Ended(reason=Reason.SHUT_DOWN)))
    result = first(ended(0, -15, 10.2), ended(1, -15, 10.0), nodes=ended_by_it)
    assert (result[:2], "the machine was shut down" in result[2]) == ((None, "node-1"), True)


def test_first_failure_prefers_reason_reported_by_node() -> None:
    output = node(0, ended=RAY_ENDED)
    result = first(ended(0, None, 10.0), ended(1, None, 10.3), nodes=(output, node(1)))
    assert result == (None, "node-0", "Ray ended here during the run: killed", 1)


def test_first_failure_blames_ray_head_before_other_nodes() -> None:
    def died(number: int, at: float, why: Ended = RAY_ENDED) -> NodeRecord:
        return replace(node(number, ended=why), ended_at=at)

    def blamed(*nodes: NodeRecord) -> str | None:
        result = first(ended(0, None, 9.0), ended(1, 1, 9.1), nodes=nodes, tails={1: PEER})
        return result[1]

    assert blamed(died(0, 12.0), died(1, 11.0)) == "node-0"
    assert blamed(died(0, 12.0, LOST), died(1, 11.0)) == "node-0"
    assert blamed(died(1, 11.0), node(0)) == "node-1"
    assert blamed(died(1, 11.0), replace(node(2, ended=LOST), ended_at=None)) == "node-1"
    assert blamed(died(1, 11.0), node(0, stopped=True)) == "node-1"
    assert blamed(died(0, 12.0), died(1, 11.0, REBOOTED)) == "node-1"


def test_first_failure_does_not_blame_rank_that_lost_ray_actor() -> None:
    tail = (
        "Traceback (most recent call last):\n  ...\n"
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    )
    output = node(0, ended=RAY_ENDED)
    result = first(ended(0, None, 10.0), ended(1, 1, 9.9), nodes=(output, node(1)), tails={1: tail})
    assert result[1] == "node-0"


def test_first_failure_blames_failed_rank_not_terminated_one() -> None:
    assert first(
        ended(0, -15, 10.4), ended(1, 3, 10.0), nodes=(node(0, stopped=True), node(1)), tails={1: BOOM}
    ) == (1, "node-1", "exit status 3: RuntimeError: boom", 3)


def test_first_failure_compares_times_corrected_by_clock_offset() -> None:
    """Node 1's clock is 100 s ahead: by that clock it failed later, in truth earlier."""
    result = first(ended(0, 1, 10.0), ended(1, 2, 109.5), nodes=(node(0), node(1)), offsets=(0.0, 100.0))
    assert result[0] == 1


def test_first_failure_prefers_error_to_sigterm_at_same_time() -> None:
    result = first(ended(0, -15, 10.0), ended(1, 3, 10.0), nodes=(node(0), node(1)))
    assert result[0] == 1


def test_first_failure_skips_earlier_rank_that_lost_its_peer() -> None:
    result = first(ended(0, 1, 10.0), ended(1, 3, 10.3), nodes=(node(0), node(1)), tails={0: PEER, 1: BOOM})
    assert result == (1, "node-1", "exit status 3: RuntimeError: boom", 3)


def test_first_failure_blames_terminated_rank_with_own_error_in_log() -> None:
    result = first(ended(0, 1, 10.0), ended(1, -15, 10.3), nodes=(node(0), node(1)), tails={0: PEER, 1: BOOM})
    assert result[:2] == (1, "node-1")
    result = first(
        ended(0, 1, 10.0), ended(1, -15, 10.3), nodes=(node(0), node(1)), tails={0: PEER, 1: TERMINATED}
    )
    assert result[:2] == (0, "node-0")


def test_first_failure_blames_killed_rank_not_its_peer() -> None:
    assert first(ended(0, 1, 10.1), ended(1, -9, 10.0), nodes=(node(0), node(1)), tails={0: PEER}) == (
        1,
        "node-1",
        "killed by SIGKILL; running out of memory is the usual cause",
        -9,
    )


def test_first_failure_says_which_stage_the_rank_is() -> None:
    """A pipeline's middle stage was killed: its neighbours lost their peer a moment before its end."""
    ranks = {
        f"node-{rank}": [ended(rank, code, at)]
        for rank, code, at in ((0, 1, 9.9), (1, -9, 10.0), (2, 1, 9.8))
    }
    report = {rank: [{"event": "start", "place": f"stage {rank + 1} of 3\x1b[2J"}] for rank in range(3)}
    nodes = [node(number) for number in range(3)]
    result = failure_of(run(0.0, 0.0, 0.0), ranks, nodes, {0: PEER, 2: PEER}, report)
    assert (result.error.rank, result.error.place) == (1, "stage 2 of 3")
    assert failed_first(result.error) == "rank 1 on node-1 (stage 2 of 3) failed first"


def test_first_failure_counts_unrequested_sigterm() -> None:
    assert first(ended(0, 1, 10.1), ended(1, -15, 10.0), nodes=(node(0), node(1))) == (
        1,
        "node-1",
        "killed by SIGTERM",
        -15,
    )


@pytest.mark.parametrize(
    "ranks",
    [
        (ended(0, -15, 10.0), ended(1, -15, 10.1)),
        (ended(0, -15, 10.0), ended(1, 1, 10.1)),
        (ended(0, -15, 10.0), ended(1, -9, 25.0)),
        (ended(0, -9, 25.0), ended(1, -9, 25.1)),
        (ended(0, 143, 10.0), ended(1, 130, 10.1)),
        (ended(0, 0, 10.0), ended(1, 0, 10.1)),
        (ended(0, None, None), ended(1, None, None)),
    ],
)
def test_first_failure_ignores_ends_caused_by_stop(ranks: tuple[RankRecord, ...]) -> None:
    assert first(*ranks, nodes=(node(0, stopped=True), node(1, stopped=True)), tails={1: PEER}) is None


@pytest.mark.parametrize(
    ("ranks", "rank"),
    [
        ((ended(0, -15, 10.2), ended(1, 3, 10.0)), 1),
        ((ended(0, -9, 10.0), ended(1, -15, 10.2)), 0),
        ((ended(0, -9, 10.0), ended(1, -9, 20.0)), 0),
    ],
)
def test_first_failure_reports_failure_before_the_stop(ranks: tuple[RankRecord, ...], rank: int) -> None:
    result = first(*ranks, nodes=(node(0, stopped=True), node(1, stopped=True)))
    assert result[0] == rank


@pytest.mark.parametrize("tail", [PEER, CONNECT, NCCL_PEER, RESET], ids=["gloo", "connect", "nccl", "reset"])
@pytest.mark.parametrize(
    "nodes",
    [
        (node(0, -15, stopped_at=10.5, why=Reason.PEER_FAILED), node(1, 1)),
        # The second node's launcher is stopped, too, as it does not end before the first.
        (
            node(0, -15, stopped_at=10.5, why=Reason.PEER_FAILED),
            node(1, -15, stopped_at=12.0, why=Reason.PEER_FAILED),
        ),
        # The order to stop found the first node before its launch.
        (node(0, None, stopped=True, why=Reason.PEER_FAILED), node(1, 1)),
    ],
    ids=["one", "both", "before its launch"],
)
def test_rank_that_lost_a_peer_failed_where_nobody_ordered_a_stop(
    nodes: tuple[NodeRecord, NodeRecord], tail: str
) -> None:
    """Rank 0 waits until it is stopped as rank 1 has failed."""
    ranks = {"node-0": [ended(0, -15, 10.6)], "node-1": [ended(1, 1, 10.0)]}
    result = failure_of(run(0.0, 0.0), ranks, nodes, {1: tail})
    assert (result.error.rank, result.error.reason, result.exit_code) == (1, Reason.LOST_PEER, 1)
    assert ending_of(ranks, nodes, {1: tail}) == ("failed", Reason.LOST_PEER)


@pytest.mark.parametrize("why", sorted(STOPS - {Reason.PEER_FAILED}))
def test_order_to_stop_explains_ends_on_nodes_that_it_has_not_reached(why: Reason) -> None:
    """Another computer stopped the first node; the second ends before the order reaches it."""
    nodes = (node(0, -15, stopped_at=10.0, why=why), node(1, 1))
    ranks = {"node-0": [ended(0, -15, 10.1)], "node-1": [ended(1, 1, 9.9)]}
    assert failure_of(run(0.0, 0.0), ranks, nodes, {1: PEER}) is None, "the clocks differ a little"
    ranks["node-1"] = [ended(1, 1, 10.2)]
    assert failure_of(run(0.0, 0.0), ranks, nodes, {1: BOOM}) is None
    assert ending_of(ranks, nodes, {1: BOOM}) == ("stopped", why)
    # A failure before the order is one.
    ranks["node-1"] = [ended(1, 1, 7.0)]
    result = failure_of(run(0.0, 0.0), ranks, nodes, {1: PEER})
    assert (result.error.rank, result.error.reason) == (1, Reason.LOST_PEER)


def test_run_without_an_order_to_stop_failed_whatever_its_ranks_told() -> None:
    nodes = tuple(node(n, -15, stopped_at=9.0, why=Reason.PEER_FAILED) for n in (0, 1))
    assert ending_of({}, nodes, {})[0] == "failed"
    result = first(ended(0, -15, 9.5), ended(1, -15, 9.2), nodes=nodes)
    assert result == (1, "node-1", "killed by SIGTERM", -15)


def test_first_failure_blames_lost_node_if_no_rank_explains_it() -> None:
    lost = node(1, None, ended=LOST)
    expected = (None, "node-1", "the node was lost", None)
    assert first(ended(0, -15), nodes=(node(0, stopped=True), lost)) == expected
    # Its peer crashes as a consequence.
    assert first(ended(0, 1), nodes=(node(0), lost), tails={0: PEER}) == expected


def test_first_failure_blames_failed_rank_before_lost_node() -> None:
    result = first(ended(0, 3), nodes=(node(0), node(1, None, ended=LOST)), tails={0: BOOM})
    assert result[0] == 0


def test_first_failure_reports_launcher_that_ended_by_itself() -> None:
    assert first(nodes=(node(0, 2), node(1, 0))) == (
        None,
        "node-0",
        "torchrun ended by itself: exit status 2",
        2,
    )
    assert first(ended(0, 0), nodes=(node(0, None),)) == (
        None,
        "node-0",
        "torchrun ended, and its exit status is not known",
        None,
    )


# Ranks that gave up waiting.

GLOO = (
    "Traceback (most recent call last):\n  ...\nRuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
    "unbound_buffer.cc:81] Timed out waiting 120000ms for recv operation to complete\n"
)
BUILT_IN = (
    "error: Rank 0 waited 120 s for another rank in vain (Timed out waiting 120000ms for recv operation to complete)."
    " That one hangs, or is far behind\n"
)
NCCL = (
    "[rank0]:[E1121 10:00:00 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600012 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\nframe #0: clone\n"
)
STORE = "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//worker_count\n"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:1] Application timeout caused pair closure\n"


def four(
    *ranks: RankRecord,
    tails: dict[int, str],
    told: dict[int, Line] | None = None,
    nodes: tuple[NodeRecord, ...] = (),
) -> tuple[int | None, str | None, str, int | None] | None:
    """Call `first` for four ranks on four nodes; nodes not given in `nodes` are stopped by gpuctl."""
    of = {record.node: record for record in nodes}
    all_of = tuple(
        of.get(f"node-{n}", node(n, stopped_at=10.5 if n else None, why=Reason.PEER_FAILED)) for n in range(4)
    )
    return first(*ranks, nodes=all_of, tails=tails, told=told, offsets=(0.0,) * 4)


@pytest.mark.parametrize(
    ("code", "tail", "message"),
    [
        (1, GLOO, "Timed out waiting 120000ms for recv operation to complete"),
        (1, BUILT_IN, "Rank 0 waited 120 s for another rank in vain"),
        (-6, NCCL, "Watchdog caught collective operation timeout: WorkNCCL"),
        (1, STORE, "wait timeout after 300000ms"),
    ],
    ids=["gloo", "built-in", "nccl", "store"],
)
@pytest.mark.parametrize("hung", [ended(1, -9, 11.0), ended(1, None, None), ended(1, -15, 11.0)])
def test_first_failure_blames_hung_rank_not_the_one_that_timed_out(
    code: int, tail: str, message: str, hung: RankRecord
) -> None:
    report = {0: {"event": "failed", "reason": "timed_out", "ranks": []}} if tail == BUILT_IN else {}
    result = first(
        ended(0, code), hung, nodes=(node(0), node(1, stopped_at=10.5)), tails={0: tail}, told=report
    )
    assert result[:2] == (1, "node-1")
    assert result[2].startswith("hung, or was far behind: rank 0 waited for it in vain (")
    assert message in result[2]
    assert result[3] == code


def test_first_failure_does_not_take_torchrun_sigkill_for_the_cause() -> None:
    """On one machine torchrun kills ranks that ignore SIGTERM, and gpuctl stopped no rank."""
    ranks = {"node-0": [ended(0, 1, 10.0), ended(1, -9, 40.0, local_rank=1)]}
    result = failure_of(run(0.0, nproc=2), ranks, (node(0),), {0: GLOO})
    assert (result.error.rank, result.exit_code) == (1, 1)
    assert "out of memory" not in result.error.message


def test_first_failure_names_all_ranks_that_may_have_hung() -> None:
    stopped = [ended(n, -15, 11.0) for n in (1, 2, 3)]
    result = four(ended(0, 1), *stopped, tails={0: GLOO})
    assert result[:2] == (None, None), "it is not known which"
    assert result[2].startswith(
        "one of the ranks 1, 2 and 3 hung, or was far behind: rank 0 waited for them in vain"
    )
    # Rank 2 did not end on the SIGTERM that ended ranks 1 and 3.
    result = four(ended(0, 1), ended(1, -15, 11.0), ended(2, -9, 20.0), ended(3, -15, 11.0), tails={0: GLOO})
    assert result[:2] == (2, "node-2")
    # Ranks that lost the peer that timed out are not the cause either.
    result = four(ended(0, 1), ended(1, 1, 10.1), ended(2, 1, 10.2), tails={0: GLOO, 1: CLOSED, 2: PEER})
    assert result[:2] == (3, "node-3")


def test_first_failure_records_reason_and_ranks_of_timeout() -> None:
    many = run(0.0, 0.0, nproc=2)
    gave_up = {"node-0": [ended(0, 1, 10.0), ended(1, 1, 10.1, local_rank=1)]}
    stopped = (node(0), node(1, stopped_at=10.5))
    result = failure_of(many, gave_up, stopped, {0: GLOO, 1: CLOSED})
    assert result.error.message.startswith("one of the ranks 2 and 3 hung")
    report = (result.error.rank, result.error.node, result.error.reason, result.error.ranks)
    assert report == (None, "node-1", Reason.HUNG, (2, 3)), "both are on one node"
    assert failed_first(result.error) == "it is not known which rank failed first"
    result = failure_of(run(0.0, nproc=2), gave_up, (node(0),), {0: GLOO, 1: GLOO})
    assert (result.error.reason, result.error.ranks) == (Reason.TIMED_OUT, ())
    result = failure_of(run(0.0), {"node-0": [ended(0, 3)]}, (node(0),), {0: BOOM})
    assert (result.error.reason, result.error.ranks) == (Reason.EXIT_CODE, ())
    assert failed_first(result.error) == "rank 0 on node-0 failed first"


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("error: Rank 0 waited 1800 s for the checkpoint 7.\n", {"reason": "timed_out", "ranks": [2, 3]}),
        ("RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 5000 ms\n", {}),
    ],
)
def test_first_failure_names_only_ranks_that_are_known_to_be_late(tail: str, message: Line) -> None:
    ranks = (ended(0, 1), *(ended(n, -15, 11.0) for n in (1, 2, 3)))
    result = four(*ranks, tails={0: tail}, told={0: {"event": "failed", **message}})
    assert result[:2] == (None, None)
    assert result[2].startswith("one of the ranks 2 and 3 hung, or was far behind")


def test_first_failure_blames_ended_rank_others_waited_for() -> None:
    result = first(ended(0, 1), ended(1, 0, 5.0), nodes=(node(0), node(1, 0)), tails={0: GLOO})
    assert result[:2] == (1, "node-1")
    assert result[2].startswith(
        "ended with exit status 0 while rank 0 waited for it (RuntimeError: Timed out"
    )


@pytest.mark.parametrize(
    ("record", "stopped_at", "blamed"),
    [
        (ended(0, 0, 9.0), None, 0),
        (ended(0, 0, 9.0), 8.0, 1),  # it ended so because of the stop
        (ended(0, 0, 20.0), None, 1),
    ],
)
def test_rank_that_lost_a_peer_which_had_ended_well_is_not_blamed(
    record: RankRecord, stopped_at: float | None, blamed: int
) -> None:
    nodes = (node(0, 0, stopped_at=stopped_at, why=Reason.PEER_FAILED), node(1))
    ranks = {"node-0": [record], "node-1": [ended(1, 1, 10.0)]}
    result = failure_of(run(0.0, 0.0), ranks, nodes, {1: PEER})
    assert (result.error.rank, result.exit_code) == (blamed, 1)
    if blamed == 0:
        assert "".join(headline(result.error)) == (
            "rank 0 on node-0 ended with exit status 0 while rank 1 waited for it (RuntimeError: Read error "
            "[127.0.0.1]:14253: Connection reset by peer)"
        )


def test_first_failure_blames_no_rank_when_all_timed_out() -> None:
    result = first(ended(0, 1), ended(1, 1, 10.2), nodes=(node(0), node(1)), tails={0: GLOO, 1: STORE})
    assert result[:2] == (None, None)
    assert result[2].startswith("every rank waited for others until its time was over")


def test_first_failure_prefers_real_failures_to_timeouts() -> None:
    nodes = (node(0), node(1, stopped_at=10.5))
    killed = first(ended(0, -6, 610.0), ended(1, -9, 10.0), nodes=(node(0), node(1)), tails={0: NCCL})
    assert killed == (1, "node-1", "killed by SIGKILL; running out of memory is the usual cause", -9)
    late = first(ended(0, 1, 10.0), ended(1, 1, 10.2), nodes=nodes, tails={0: GLOO, 1: BOOM})
    assert late == (1, "node-1", "exit status 1: RuntimeError: boom", 1)
    lost = (node(0), node(1, None, ended=LOST))
    assert first(ended(0, 1), nodes=lost, tails={0: GLOO}) == (None, "node-1", "the node was lost", None)
    # Stopped by a person while it waited.
    by_hand = (node(0, stopped_at=9.0), node(1, stopped_at=9.0))
    assert first(ended(0, 1, 9.5), ended(1, -15, 9.2), nodes=by_hand, tails={0: GLOO}) is None


@pytest.mark.parametrize(
    ("code", "tail", "message"),
    [
        (3, "", "exit status 3 without a word in its log"),
        (1, "one\ntwo\n\n", "exit status 1 without a traceback; its log ends with: two"),
        (
            1,
            BOOM + "[rank0]:[W121 10:00:00] destroy_process_group() was not called\n",
            "exit status 1: RuntimeError: boom",
        ),
        (-9, "some line", "killed by SIGKILL; running out of memory is the usual cause"),
        (137, "", "exit status 137 (SIGKILL); running out of memory is the usual cause"),
        (
            -11,
            "Fatal Python error: Segmentation fault",
            "killed by SIGSEGV: Fatal Python error: Segmentation fault",
        ),
        (
            -6,
            "ranks agree\nterminate called without an active exception\n",
            "killed by SIGABRT: terminate called without an active exception; if its work was done, a thread of "
            "torch's gloo was still at it when Python ended: end the script with os._exit(0)",
        ),
        (-15, "some line", "killed by SIGTERM"),
        (-99, "", "killed by signal 99 without a word in its log"),
        (200, "", "exit status 200 without a word in its log"),
    ],
)
def test_rank_end_explains_exit_status_or_signal(code: int, tail: str, message: str) -> None:
    end, _ = rank_end(ended(0, code), tail, RankMetrics())
    assert sentence(end) == message


def test_first_failure_blames_rank_that_is_gone_with_its_watcher() -> None:
    """Both ranks are torchrun's on one machine; it ended the other after one was gone."""
    ranks = {"node-0": [ended(0, -15, 10.4), ended(1, None, None, local_rank=1)]}
    result = failure_of(run(0.0, nproc=2), ranks, (node(0, 1),), {})
    assert (result.error.rank, result.error.reason, result.exit_code) == (1, Reason.UNKNOWN, None)
    # A launcher that was itself killed took its ranks along.
    result = failure_of(run(0.0, nproc=2), ranks, (node(0, -9),), {})
    assert (result.error.rank, result.error.reason) == (0, Reason.TERMINATED)


def test_first_failure_tells_program_that_could_not_be_started() -> None:
    why = Ended(reason=Reason.NOT_STARTED, program="my-train", detail="No such file or directory")
    result = first(replace(ended(0, 127), ended=why), ended(1, -15, 10.5), nodes=(node(0), node(1)))
    assert result == (0, "node-0", "my-train could not be started: No such file or directory", 127)


def test_every_reason_has_its_place() -> None:
    assert set(SUSPICION) == set(Reason)
