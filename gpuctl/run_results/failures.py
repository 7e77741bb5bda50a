"""Which failure of a run came first.

When one rank fails, the others follow: their peer is gone, and the launcher ends them. What a person wants
to see is the rank that began it. A rank that gave up waiting is not that one: those are that it waited for.
Everything here is judged from records, in the cluster's time: a node's clock less its offset.
"""

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuctl.text import clean
from inventories.run import FirstError, NodeRecord, RankRecord, Run
from remote.checks.finding import listed
from remote.shared.constants import RAY_ENDED

STOP_STATUSES = frozenset({-15, -2, -1, 143, 130, 129})
"""How a rank ends that was told to: SIGTERM, SIGINT, SIGHUP, also as a shell reports them."""
KILL_STATUSES = frozenset({-9, 137})
GONE = "killed, by nobody knows what; running out of memory is the usual cause"
"""Of a rank whose parent is not ours: Ray's."""
MOST_SAID = 300
SAME_MOMENT_S = 2.0
"""Ranks killed within this time were killed by one hand."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
_RANK_PREFIX = re.compile(r"^(\[[\w.:-]+\]:\s?)+")
"""`[rank1]: ` and `[default1]:`, as torch and torchrun put them before a line."""
_PEER_GONE = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|timed out|remote worker)"
    r"|ncclRemoteError|remote process exit|DistNetworkError|Connection closed by remote peer"
    r"|Rank \d+ lost another rank"
    r"|Application timeout caused pair closure|while waiting for send/recv from rank"
    r"|ray\.exceptions\.(Actor(Died|Unavailable)|NodeDied|LocalRayletDied|OwnerDied|WorkerCrashed)Error",
    re.IGNORECASE,
)
"""What a rank says that only noticed that another one is gone."""
_GAVE_UP = re.compile(
    r"Timed out waiting \d+ ?ms for (send|recv) operation"  # gloo
    r"|Watchdog caught collective operation timeout.*|NCCL communicator was aborted on rank \d+"
    r"|wait timeout after \d+ ?ms, keys|Timed out after \d+ seconds waiting for clients"  # torch's store
    r"|failed to pass monitoredBarrier in \d+ ms"
    r"|Rank \d+ waited [\d.e+]+ s for|Rank \d+ did not find the other \d+ within",  # the built-in job
)
"""What a rank says whose time was over while it waited for others."""
_NAMED = re.compile(
    r"Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier"
    r"|Rank \d+ waited [\d.e+]+ s for the .+ of ranks? (\d+(?:, \d+)*)"
)
"""Where it names them."""
_ABORTS = frozenset({-6, 134})
"""How NCCL's watchdog ends a rank: what it says stands before the stacks."""
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
        """It only tells that another rank is gone, or does not come."""
        return self.gave_up or bool(_PEER_GONE.search(last_words(self.tail)))

    @property
    def gave_up(self) -> bool:
        """It ended as its time was over while it waited for others."""
        return bool(_GAVE_UP.search(self.said))

    @property
    def said(self) -> str:
        """What it ended of, in one line."""
        if self.code in _ABORTS and (found := _GAVE_UP.search(self.tail)):
            return clean(found.group(), MOST_SAID)
        return last_words(self.tail)


def first_failure(
    run: Run,
    ranks: Mapping[str, Sequence[RankRecord]],
    nodes: Sequence[NodeRecord],
    log_tails: Mapping[int, str],
) -> Failure | None:
    """The earliest failure that began by itself; None where there is none.

    What a stop did to the ranks is no failure. A node is named where no rank's end explains it.
    """
    ends = _bad_ends(run, ranks, nodes, log_tails)
    rank = _rank_to_blame(ends, nodes)
    node = _node_to_blame(run, nodes)
    gone = _gone(run, ranks, log_tails)
    if not (node and node.failure) and (waited := _waited_in_vain(run, ranks, ends, gone)):
        return waited
    if gone and not (rank and not rank.echo) and not (node and node.failure) and _by_itself(nodes):
        return Failure(error=FirstError(rank=gone.rank, node=gone.node, message=GONE), exit_code=None)
    if rank and not ((rank.echo or rank.asked_to) and node and node.failure):
        message = describe(rank.code, rank.tail)
        return Failure(error=FirstError(rank=rank.rank, node=rank.node, message=message), exit_code=rank.code)
    if node:
        error = FirstError(rank=None, node=node.node, message=_describe_node(node))
        return Failure(error=error, exit_code=node.exit_code)
    return None


def failed_first(error: FirstError) -> str:
    """`rank 1 on gpu-1 failed first`, `gpu-1 failed first`, or that it is not known which rank did."""
    if error.rank is not None:
        return f"rank {error.rank} on {error.node} failed first"
    return "it is not known which rank failed first" if error.reason else f"{error.node} failed first"


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


def _waited_in_vain(
    run: Run, ranks: Mapping[str, Sequence[RankRecord]], ends: Sequence[_End], gone: _End | None
) -> Failure | None:
    """The failure of the ranks that others waited for until they gave up; None where something else explains it.

    What ended a rank after another had given up followed from that, unless it died of an error of its own.
    """
    first = next((end for end in ends if end.gave_up), None)
    if first is None or first.stopped:
        return None
    for end in (*ends, *([gone] if gone else [])):
        followed = end.at >= first.at and (end.asked_to or end.code in KILL_STATUSES or end is gone)
        if not (end.echo or end.stopped or followed) or _died_itself(end):
            return None
    named = {
        int(rank)
        for found in _NAMED.finditer(first.said)
        for rank in re.findall(r"\d+", found[1] or found[2])
    }
    silent = _waited_for(run, ranks, ends)
    silent = {rank: node for rank, node in silent.items() if rank in named} or silent
    said = f"rank {first.rank} {{}} in vain ({first.said})"
    if not silent:
        message = (
            "every rank waited for others until its time was over: the network between them fails, or they are not "
            f"in the same operation; {said.format('waited')}"
        )
    else:
        whom = "it" if len(silent) == 1 else "them"
        which = "" if len(silent) == 1 else f"one of the ranks {listed(list(map(str, silent)), most=8)} "
        how = "had ended" if _ended_well(ranks, silent) else "hung, or was far behind"
        message = f"{which}{how}: {said.format(f'waited for {whom}')}"
    nodes = set(silent.values() if silent else (node.name for node in run.nodes))
    error = FirstError(
        rank=min(silent) if len(silent) == 1 else None,
        node=min(nodes) if len(nodes) == 1 else None,
        message=message,
        reason="waited_in_vain",
        ranks=tuple(sorted(silent)),
    )
    return Failure(error=error, exit_code=first.code)


def _waited_for(run: Run, ranks: Mapping[str, Sequence[RankRecord]], ends: Sequence[_End]) -> dict[int, str]:
    """Rank → node of those that the others can have waited for, as far as it is known.

    They are not among those that gave up, or lost a peer. A rank that works takes SIGTERM, one that is stopped or
    hangs in the driver does not; one that had ended well is meant where there is no other.
    """
    echoes = {end.rank for end in ends if end.echo}
    known = {record.rank: record.exit_code for records in ranks.values() for record in records}
    others = {
        rank: node.name
        for node in run.nodes
        for rank in range(node.first_rank, node.first_rank + node.nproc)
        if rank not in echoes
    }
    alive = {rank: node for rank, node in others.items() if known.get(rank) != 0}
    deaf = {rank: node for rank, node in alive.items() if known.get(rank) in (None, *KILL_STATUSES)}
    return deaf or alive or others


def _ended_well(ranks: Mapping[str, Sequence[RankRecord]], which: Mapping[int, str]) -> bool:
    codes = {record.rank: record.exit_code for records in ranks.values() for record in records}
    return all(codes.get(rank) == 0 for rank in which)


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
        if _died_itself(end):
            return end
    return None if any(end.stopped for end in ends) else own[0]


def _ended_by_stop(ends: Sequence[_End]) -> bool:
    """Whether a stop explains all of these: the first was told to end, or all were killed at once."""
    killed = all(end.code in KILL_STATUSES for end in ends)
    return ends[0].asked_to or (killed and ends[-1].at - ends[0].at < SAME_MOMENT_S)


def _died_itself(end: _End) -> bool:
    """Whether its last words are of an error of its own, whatever ended it then."""
    traced = any(_TRACEBACK.search(line) for line in end.tail.split("\n"))
    return traced and not end.echo and not _ENDED_ON_REQUEST.match(last_words(end.tail))


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
