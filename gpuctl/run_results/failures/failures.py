"""The first failure of a run.

If one rank fails, the others follow: their peer is gone, and the launcher ends them. Users want the rank that began
it. A rank that timed out is a victim: the suspects are the ranks it was waiting for. All times here come from
records, in the cluster's time: a node's clock less its offset.
"""

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuctl.run_results.evidence import Evidence, Records
from gpuctl.run_results.failures.rank_end import ECHOES, END_SIGNALS, rank_end
from gpuctl.run_results.rank_metrics import RankMetrics
from gpuctl.text import clean, for_cluster
from inventories.runs.end_reasons import Ended, Reason
from inventories.runs.records import NodeRecord, RankRecord
from inventories.runs.result import FirstError, Result
from remote.end_sentences import sentence

SUSPICION = {
    Reason.EXIT_CODE: 0,
    Reason.SIGNAL: 0,
    Reason.OUT_OF_MEMORY: 0,
    Reason.SHARED_MEMORY_FULL: 0,
    Reason.CUDA_ERROR: 0,
    Reason.MODULE_NOT_FOUND: 0,
    Reason.FILE_NOT_FOUND: 0,
    Reason.THREAD_AT_EXIT: 0,
    Reason.NOT_STARTED: 0,
    Reason.DISK_FULL: 1,
    Reason.SHUT_DOWN: 1,
    Reason.REBOOTED: 1,
    Reason.CONTAINER_RESTARTED: 1,
    Reason.RUNNER_KILLED: 1,
    Reason.NO_RECORD: 1,
    Reason.NODE_FAILED: 1,
    Reason.NODE_LOST: 1,
    Reason.NODE_SILENT: 1,
    Reason.UNREACHABLE: 1,
    Reason.BAD_ANSWER: 1,
    Reason.MACHINE_REMOVED: 1,
    Reason.RAY_LATE: 1,
    Reason.RAY_ENDED: 1,
    # 2: a rank that was ended while it died of an error of its own.
    Reason.UNKNOWN: 3,
    # It may tell only that another rank is gone.
    Reason.NCCL_ERROR: 4,
    Reason.TIMED_OUT: 5,
    # Derived later from a rank's end; no rank or node reports it.
    Reason.HUNG: 5,
    Reason.ENDED_EARLY: 5,
    Reason.TERMINATED: 6,
    Reason.LOST_PEER: 7,
    Reason.LAUNCHER_ENDED: 8,
    # No failures.
    Reason.STOPPED: 9,
    Reason.STOPPED_HUNG: 9,
    Reason.GPUS_IDLE: 9,
    Reason.RESIZED: 9,
    Reason.PEER_FAILED: 9,
}
"""How near each reason is to the cause: of a run's ends, the one of the lowest number began it."""
DYING = 2
_RAY_FOLLOWS = 1.5
"""Ray's end on a node other than its head's, where that one failed."""
_KILLED = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})
SAME_MOMENT_S = 2.0
"""Ranks killed within this time were killed by one hand."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure that came first."""

    error: FirstError
    exit_code: int | None
    """The rank's, else the launcher's; `None`: not known."""


@dataclass(frozen=True, kw_only=True)
class End:
    """A bad end of a rank or of a node's part."""

    ended: Ended
    at: float
    """In the cluster's time; infinite where it is not known."""
    node: str
    rank: int | None = None
    """`None`: the node."""
    stopped: bool = False
    """Whether a stop explains its end, whatever the status: its node, or another by an order, had been stopped."""
    own_error: bool = False
    """True: the log has an exception of the rank's own."""
    head: bool = False
    """Of a node: whether it is the first, on which Ray's head is."""

    @property
    def reason(self) -> Reason:
        """The reason of the end."""
        return self.ended.reason

    @property
    def signalled(self) -> bool:
        """True: it ended by a signal that asks for an end."""
        return self.ended.signal in END_SIGNALS

    @property
    def killed(self) -> bool:
        """True: it was killed."""
        return self.ended.signal == signal.SIGKILL


def first_failure(evidence: Evidence) -> Failure | None:
    """Return the earliest failure that no other end explains. `None`: no failure.

    Ends by a stop are no failures. A node is named if no rank's end explains its failure.
    """
    failure = _first(evidence)
    rank = None if failure is None else failure.error.rank
    if failure is None or rank is None or rank not in evidence.metrics:
        return failure
    return replace(failure, error=replace(failure.error, place=evidence.metrics[rank].place))


def _first(evidence: Evidence) -> Failure | None:
    """The earliest failure, without the rank's place."""
    ends = _rank_ends(evidence)
    if _stopped_at_an_unknown_time(ends, evidence.nodes):
        ends = [end for end in ends if end.reason is Reason.UNKNOWN]
    began = which_began([*ends, *_node_ends(evidence)])
    if began is None and not any(node.stop_ordered for node in evidence.nodes):
        began = min(ends, key=_when, default=None)  # nobody ordered a stop, so an end caused the stops
    if began is None:
        return None
    if began.reason is Reason.TIMED_OUT:
        return _waited_for(evidence, began, _silent(evidence, ends))
    if began.reason is Reason.LOST_PEER and (done := _ended_well_before(evidence, began)):
        return _waited_for(evidence, began, done)
    error = FirstError(
        rank=began.rank,
        node=began.node,
        message=for_cluster(sentence(began.ended), evidence.run.cluster),
        reason=began.reason,
        detail=began.ended.detail,
        cause=began.ended.cause,
    )
    return Failure(error=error, exit_code=began.ended.exit_code)


def which_began(ends: Sequence[End]) -> End | None:
    """Return the end that began the others. `None`: all were stopped."""
    nodes = [end for end in ends if end.rank is None]
    ranks = sorted((end for end in ends if end.rank is not None), key=_when)
    suspects = _by_themselves(ranks)
    if suspects and all(end.reason in ECHOES for end in suspects):
        # All only report another rank's end: that of one which was ended while it was dying of its own error.
        suspects = [*(end for end in ranks if end.own_error), *suspects]
    head_failed = any(end.head and end.reason is not Reason.LAUNCHER_ENDED for end in nodes)

    def suspicion(end: End) -> tuple[float, tuple[float, bool, int]]:
        level: float = SUSPICION[end.reason]
        if end.reason is Reason.RAY_ENDED and head_failed and not end.head:
            level = _RAY_FOLLOWS
        if end.rank is not None and end.own_error and (end.stopped or end.reason is Reason.TERMINATED):
            level = DYING
        return (level, _when(end))

    return min([*suspects, *nodes], key=suspicion, default=None)


def _by_themselves(ranks: Sequence[End]) -> list[End]:
    """Return the ranks' ends, in order of time, that neither a stop nor an earlier end explains."""
    independent = [end for end in ranks if not end.stopped]
    unknown = [end for end in independent if end.reason is Reason.UNKNOWN]
    first = next((end for end in independent if end.reason is not Reason.UNKNOWN), None)
    if first is not None and first.reason is Reason.TERMINATED:
        # Whoever ended it began it, unless that followed from an end that nobody saw.
        return [first, *unknown]
    waited = next((end for end in independent if end.reason is Reason.TIMED_OUT), None)

    def follows(end: End) -> bool:
        """Return whether a rank was ended because another rank had timed out."""
        after = waited is not None and end.at >= waited.at
        killed = end.reason is Reason.UNKNOWN or (end.reason is Reason.SIGNAL and end.killed)
        return after and killed and not end.own_error

    return [end for end in independent if end.reason is not Reason.TERMINATED and not follows(end)]


def _when(end: End) -> tuple[float, bool, int]:
    """Order by time; at the same time, ends without a signal that asked for them first."""
    return (end.at, end.signalled, -1 if end.rank is None else end.rank)


def how_it_ended(error: FirstError) -> str:
    """`failed`; `ended` of ranks that ended well, and that others waited for."""
    return "ended" if error.reason is Reason.ENDED_EARLY else "failed"


def failed_first(error: FirstError) -> str:
    """`rank 1 on gpu-1 failed first`, `gpu-1 failed first`, or that it is not known which rank did."""
    if error.rank is not None:
        return f"{rank_on_node(error)} {how_it_ended(error)} first"
    return "it is not known which rank failed first" if error.waited_for else f"{error.node} failed first"


def headline(error: FirstError) -> tuple[str, str]:
    """Return who failed, to be stressed, and its reason: `rank 1 on gpu-1 failed first: `, `exit status 3: boom`."""
    if error.reason is not Reason.ENDED_EARLY:
        return f"{failed_first(error)}: ", error.message
    return "" if error.rank is None else f"{rank_on_node(error)} ", error.message


def rank_on_node(error: FirstError) -> str:
    """`rank 1 on gpu-1`, `rank 1 on gpu-1 (stage 2 of 4)`."""
    return f"rank {error.rank} on {error.node}" + (f" ({error.place})" if error.place else "")


def _rank_ends(evidence: Evidence) -> list[End]:
    """The ranks that ended badly, earliest first."""
    of = {node.node: node for node in evidence.nodes}
    by_itself = any(node.exit_code != 0 and not node.stopped for node in evidence.nodes)
    ordered_at = _ordered_at(evidence)
    ends = []
    for name, records in evidence.ranks.items():
        node, offset = of.get(name), evidence.offsets.get(name, 0.0)
        for record in records:
            if record.exit_code == 0 or (
                record.exit_code is None and not (by_itself and has_ended(record, node))
            ):
                continue
            log_tail = evidence.log_tails.get(record.rank, "")
            metrics = evidence.metrics.get(record.rank, RankMetrics())
            ended, own_error = rank_end(record, log_tail, metrics)
            stopped_at = None if node is None else node.stopped_at
            at = math.inf if record.ended_at is None else record.ended_at - offset
            # A rank can only lose a peer after the peer's stop: what says otherwise is the clocks' difference.
            order = ordered_at - SAME_MOMENT_S if ended.reason is Reason.LOST_PEER else ordered_at
            # Compare within the node's clock: two clocks may differ by more than a stop takes.
            by_own_stop = (
                stopped_at is not None and record.ended_at is not None and record.ended_at >= stopped_at
            )
            end = End(
                ended=ended,
                at=at,
                node=name,
                rank=record.rank,
                stopped=by_own_stop or order <= at < math.inf,
                own_error=own_error,
            )
            ends.append(end)
    return sorted(ends, key=_when)


def _ordered_at(records: Records) -> float:
    """Return the time of the first ordered stop, in the cluster's time. Infinity: no order, or an unknown time."""
    ordered = [
        node.stopped_at - records.offsets.get(node.node, 0.0)
        for node in records.nodes
        if node.stop_ordered and node.stopped_at is not None
    ]
    return min(ordered, default=math.inf)


def has_ended(record: RankRecord, node: NodeRecord | None) -> bool:
    """Return whether a rank without an exit status has ended.

    Without a record of its end, a rank is gone if its launcher failed: something killed its watcher with it. If the
    launcher or the node was ended from outside, its ranks were ended with it.
    """
    if record.ended_at is not None:
        return True
    if node is None or node.stopped or node.failure:
        return False
    return node.exit_code is not None and 0 < node.exit_code <= 128


def _node_ends(records: Records) -> list[End]:
    """The nodes that failed themselves, or whose launchers did."""
    head = records.run.nodes[0].name
    ordered_at = _ordered_at(records)
    ends = []
    for node in records.nodes:
        at = math.inf if node.ended_at is None else node.ended_at - records.offsets.get(node.node, 0.0)
        if node.failure:
            ended = replace(node.failure, exit_code=node.exit_code)
        elif node.exit_code != 0 and not node.stopped and not ordered_at <= at < math.inf:
            ended = Ended(reason=Reason.LAUNCHER_ENDED, program=node.launcher, exit_code=node.exit_code)
        else:
            continue
        ends.append(End(ended=ended, at=at, node=node.node, head=node.node == head))
    return ends


def _stopped_at_an_unknown_time(ends: Sequence[End], nodes: Sequence[NodeRecord]) -> bool:
    """Return whether a stop at an unknown time explains the ranks' ends.

    The first rank was asked to end, or all were killed at once.
    """
    recorded = [end for end in ends if not end.stopped and end.ended.exit_code is not None]
    if not recorded or not any(node.stop_ordered and node.stopped_at is None for node in nodes):
        return False
    killed = all(end.killed for end in recorded)
    return recorded[0].signalled or (killed and recorded[-1].at - recorded[0].at < SAME_MOMENT_S)


def _waited_for(records: Records, first: End, silent: Mapping[int, str]) -> Failure:
    """The failure of the ranks (→ node) that others waited for until the `first` gave up, or saw them gone."""
    silent = {rank: node for rank, node in silent.items() if rank in first.ended.ranks} or silent
    by_rank = records.by_rank
    if not silent:
        reason = Reason.TIMED_OUT
    elif all(rank in by_rank and by_rank[rank].exit_code == 0 for rank in silent):
        reason = Reason.ENDED_EARLY
    else:
        reason = Reason.HUNG
    ended = replace(first.ended, reason=reason, rank=first.rank, ranks=tuple(sorted(silent)))
    nodes = set(silent.values() if silent else records.offsets)
    error = FirstError(
        rank=min(silent) if len(silent) == 1 else None,
        node=min(nodes) if len(nodes) == 1 else None,
        message=sentence(ended),
        reason=reason,
        ranks=ended.ranks,
        detail=ended.detail,
    )
    return Failure(error=error, exit_code=first.ended.exit_code)


def _ended_well_before(records: Records, victim: End) -> dict[int, str]:
    """Return rank → node of the ranks that had ended well, not by an order, when the `victim` lost its peer."""
    stopped_at = {node.node: node.stopped_at for node in records.nodes if node.stopped_at is not None}
    return {
        record.rank: name
        for name, ranks in records.ranks.items()
        for record in ranks
        if record.exit_code == 0
        and record.ended_at is not None
        and record.ended_at < stopped_at.get(name, math.inf)
        and record.ended_at - records.offsets.get(name, 0.0) <= victim.at + SAME_MOMENT_S
    }


def _silent(records: Records, ends: Sequence[End]) -> dict[int, str]:
    """Return rank → node of the ranks that the others can have waited for, as far as known.

    Ranks that timed out or lost a peer are not among them. A rank that works takes SIGTERM; a stopped rank, or one
    that hangs in the driver, does not. A rank that had ended well counts if no other rank is left.
    """
    echoes = {end.rank for end in ends if end.reason in ECHOES}
    known = {rank: record.exit_code for rank, record in records.by_rank.items()}
    candidates = {
        rank: node.name
        for node in records.run.nodes
        for rank in range(node.first_rank, node.first_rank + node.nproc)
        if rank not in echoes
    }
    alive = {rank: node for rank, node in candidates.items() if known.get(rank) != 0}
    deaf = {rank: node for rank, node in alive.items() if known.get(rank) in (None, *_KILLED)}
    return deaf or alive or candidates


def what_failed(result: Result) -> str:
    """Return `rank 1 on gpu-1: exit status 3: boom`."""
    error = result.first_error
    if error is None:
        return "for no known reason"
    subject = error.node if error.rank is None else rank_on_node(error)
    return ": ".join(filter(None, [subject, clean(error.message, 200)]))
