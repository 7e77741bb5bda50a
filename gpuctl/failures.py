"""Which failure of a run came first.

When one rank fails, the others follow: their peer is gone, and the launcher ends them. What a person wants
to see is the rank that began it. Everything here is judged from records, in the cluster's time: a node's
clock less its offset.
"""

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuctl.text import clean
from inventories.run import FirstError, NodeRecord, RankRecord, Run
from remote.node.runner import RAY_ENDED

STOP_STATUSES = frozenset({-15, -2, -1, 143, 130, 129})
"""How a rank ends that was told to: SIGTERM, SIGINT, SIGHUP, also as a shell reports them."""
KILL_STATUSES = frozenset({-9, 137})
GONE = "killed, by nobody knows what; running out of memory is the usual cause"
"""Of a rank whose parent is not ours: Ray's."""
SAME_MOMENT_S = 2.0
"""Ranks killed within this time were killed by one hand."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
_RANK_PREFIX = re.compile(r"^(\[[\w.:-]+\]:\s?)+")
"""`[rank1]: ` and `[default1]:`, as torch and torchrun put them before a line."""
_PEER_GONE = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|timed out|remote worker)"
    r"|ncclRemoteError|remote process exit|DistNetworkError|Connection closed by remote peer"
    r"|Rank \d+ lost another rank"
    r"|ray\.exceptions\.(Actor(Died|Unavailable)|NodeDied|LocalRayletDied|OwnerDied|WorkerCrashed)Error",
    re.IGNORECASE,
)
"""What a rank says that only noticed that another one is gone."""
_FROM_A_TASK = re.compile(r"^ray\.exceptions\.RayTaskError\(")
"""What Ray puts before the traceback of a task, whose own end is on the next line that is not indented."""
_ABORTED = "terminate called without an active exception"
"""What C++ says of a thread that is taken down while it works, as Python does with those that want it at its end."""
_ENDED_ON_REQUEST = re.compile(r"^(KeyboardInterrupt|SystemExit|.*SignalException)\b")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure that came first."""

    error: FirstError
    exit_code: int | None
    """The rank's, else the launcher's; None: not known."""


@dataclass(frozen=True, kw_only=True)
class _End:
    """How a rank ended that did not end well."""

    at: float
    rank: int
    node: str
    code: int
    tail: str
    stopped: bool
    """Whether its node had been told to stop by then: its end, whatever the status, follows from that."""

    @property
    def asked_to(self) -> bool:
        return self.code in STOP_STATUSES

    @property
    def echo(self) -> bool:
        """It only tells that another rank is gone."""
        return bool(_PEER_GONE.search(last_words(self.tail)))


def first_failure(
    run: Run,
    ranks: Mapping[str, Sequence[RankRecord]],
    nodes: Sequence[NodeRecord],
    log_tails: Mapping[int, str],
) -> Failure | None:
    """The earliest failure that began by itself; None where there is none.

    What a stop did to the ranks is no failure. A node is named where no rank's end explains it.
    """
    rank = _rank_to_blame(_bad_ends(run, ranks, nodes, log_tails), nodes)
    node = _node_to_blame(run, nodes)
    gone = _gone(run, ranks, log_tails)
    if gone and not (rank and not rank.echo) and not (node and node.failure) and _by_itself(nodes):
        return Failure(error=FirstError(rank=gone.rank, node=gone.node, message=GONE), exit_code=None)
    if rank and not ((rank.echo or rank.asked_to) and node and node.failure):
        message = describe(rank.code, rank.tail)
        return Failure(error=FirstError(rank=rank.rank, node=rank.node, message=message), exit_code=rank.code)
    if node:
        error = FirstError(rank=None, node=node.node, message=_describe_node(node))
        return Failure(error=error, exit_code=node.exit_code)
    return None


def describe(code: int, tail: str) -> str:
    """One line on how a rank ended, with the last words of its log: `exit status 3: RuntimeError: boom`."""
    said = last_words(tail)
    if code in KILL_STATUSES:
        return f"{_status(code)}; running out of memory is the usual cause"
    if code < 0 and code in STOP_STATUSES:
        return _status(code)
    if said == _ABORTED:
        return (
            f"{_status(code)}: {said}; if its work was done, a thread of torch's gloo was still at it when Python "
            "ended: end the script with os._exit(0)"
        )
    return f"{_status(code)}: {said}" if said else _status(code)


def last_words(tail: str) -> str:
    """The line of a log's end that tells most: what the last traceback ended with, else the last line."""
    lines = [_RANK_PREFIX.sub("", clean(line).rstrip()) for line in tail.split("\n")]
    headers = [at for at, line in enumerate(lines) if _TRACEBACK.search(line)]
    if headers:
        ends = [line for line in lines[headers[-1] + 1 :] if line and not line[0].isspace()]
        if ends:
            return ends[1] if len(ends) > 1 and _FROM_A_TASK.match(ends[0]) else ends[0]
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _status(code: int) -> str:
    """`exit status 3`, `killed by SIGKILL`, `exit status 139 (SIGSEGV)`."""
    if code < 0:
        return f"killed by {signal_name(-code)}"
    if 128 < code < 160:
        return f"exit status {code} ({signal_name(code - 128)})"
    return f"exit status {code}"


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 99`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _bad_ends(
    run: Run,
    ranks: Mapping[str, Sequence[RankRecord]],
    nodes: Sequence[NodeRecord],
    log_tails: Mapping[int, str],
) -> list[_End]:
    """The ranks that ended badly, earliest first; of one instant, those first that were not told to."""
    stops = {node.node: node.stopped_at for node in nodes if node.stopped_at is not None}
    offsets = {node.name: node.clock_offset_s for node in run.nodes}
    ends = [
        _End(
            at=math.inf if record.ended_at is None else record.ended_at - offsets.get(node, 0.0),
            rank=record.rank,
            node=node,
            code=record.exit_code,
            tail=log_tails.get(record.rank, ""),
            # Of one clock, the node's: those of two may differ by more than a stop takes.
            stopped=node in stops and record.ended_at is not None and record.ended_at >= stops[node],
        )
        for node, records in ranks.items()
        for record in records
        if record.exit_code not in (None, 0)
    ]
    return sorted(ends, key=lambda end: (end.at, end.asked_to, end.rank))


def _gone(run: Run, ranks: Mapping[str, Sequence[RankRecord]], log_tails: Mapping[int, str]) -> _End | None:
    """The first rank that ended without an exit status: others followed it, and may have told so before their end."""
    offsets = {node.name: node.clock_offset_s for node in run.nodes}
    gone = [
        _End(
            at=record.ended_at - offsets.get(node, 0.0),
            rank=record.rank,
            node=node,
            code=0,
            tail=log_tails.get(record.rank, ""),
            stopped=False,
        )
        for node, records in ranks.items()
        for record in records
        if record.ended_at is not None and record.exit_code is None
    ]
    return min(gone, key=lambda end: (end.echo, end.at, end.rank), default=None)


def _by_itself(nodes: Sequence[NodeRecord]) -> bool:
    """Whether a node failed that nobody had stopped."""
    return any(node.exit_code != 0 and not node.stopped for node in nodes)


def _rank_to_blame(ends: Sequence[_End], nodes: Sequence[NodeRecord]) -> _End | None:
    """The rank whose failure began it all."""
    before = [end for end in ends if not end.stopped]
    unknown = any(node.stopped and node.stopped_at is None for node in nodes)
    if not before or (unknown and _ended_by_stop(before)):
        return None
    own = [end for end in before if end is before[0] or not end.asked_to]
    for end in own:
        if not end.echo:
            return end
    # All of them lost a peer: one that a stop had ended, or one that was told to end while it was still dying of its
    # own error.
    for end in ends:
        said = last_words(end.tail)
        if _has_traceback(end.tail) and not end.echo and not _ENDED_ON_REQUEST.match(said):
            return end
    return None if any(end.stopped for end in ends) else own[0]


def _ended_by_stop(ends: Sequence[_End]) -> bool:
    """Whether a stop explains all of these: the first was told to end, or all were killed at once."""
    killed = all(end.code in KILL_STATUSES for end in ends)
    return ends[0].asked_to or (killed and ends[-1].at - ends[0].at < SAME_MOMENT_S)


def _has_traceback(tail: str) -> bool:
    return any(_TRACEBACK.search(line) for line in tail.split("\n"))


def _node_to_blame(run: Run, nodes: Sequence[NodeRecord]) -> NodeRecord | None:
    """The node that failed itself, or whose launcher did; those with a sentence of their own first."""
    offsets = {node.name: node.clock_offset_s for node in run.nodes}
    head = next((node.name for node in run.nodes), None)
    # Without its head, which is on the first node, Ray ends on the others, too.
    head_failed = any(node.node == head and node.failure for node in nodes)

    def when(node: NodeRecord) -> tuple[bool, bool, float]:
        at = math.inf if node.ended_at is None else node.ended_at - offsets.get(node.node, 0.0)
        follows = head_failed and node.node != head and (node.failure or "").startswith(RAY_ENDED)
        return not node.failure, follows, at

    bad = [node for node in nodes if node.failure or (node.exit_code != 0 and not node.stopped)]
    return min(bad, key=when, default=None)


def _describe_node(node: NodeRecord) -> str:
    if node.failure:
        return node.failure
    if node.exit_code is None:
        return f"{node.launcher} ended, and its exit status is not known"
    return f"{node.launcher} ended by itself: {_status(node.exit_code)}"
