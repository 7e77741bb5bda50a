"""The end of one rank, by its exit status, its log, its own report, and its node's record. Pure."""

import re
import signal
from dataclasses import replace

from gpuctl.run_results.failures import log_errors
from gpuctl.run_results.failures.stacks import crashed_at
from gpuctl.run_results.rank_metrics import RankMetrics
from gpuctl.text import clean
from inventories.runs.end_reasons import Cause, Ended, Reason
from inventories.runs.records import RankRecord

ECHOES = frozenset({Reason.LOST_PEER, Reason.TIMED_OUT})
"""They tell only that another rank is gone, or does not come."""
END_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
MEMORY_KILL_S = 60.0
"""Time after which a rank may notice that the kernel killed a process of its own, s."""
FULL_SHARE = 1 / 16
"""Of /dev/shm: with less free, what did not fit may be what failed."""


def rank_end(record: RankRecord, log_tail: str, metrics: RankMetrics) -> tuple[Ended, bool]:
    """Return the end of a rank, and whether its log has an exception of the rank's own."""
    code = record.exit_code
    bare = Ended(reason=Reason.UNKNOWN if code is None else Reason.EXIT_CODE, exit_code=code)
    if record.ended is not None:
        return replace(record.ended, exit_code=code), False
    text, crash = log_errors.without_crash(log_tail)
    log = log_errors.read(text, code=code)
    reason, ranks = metrics.end_reason or (log.reason, log.ranks)
    is_own = log.traceback and reason not in ECHOES
    facts = record.facts
    if facts is not None:  # a node sent them: nothing in them may steer a terminal
        facts = replace(
            facts,
            killed_process=clean(facts.killed_process, 100),
            nccl_interfaces=tuple(clean(name, 100) for name in facts.nccl_interfaces),
            nccl_warning=clean(facts.nccl_warning, log_errors.MOST_SAID),
        )
    if bare.signal in CRASHES:
        place = crashed_at(crash)
        bare = replace(bare, place=clean(place, 500))
    elif bare.signal is None or is_own:
        bare = replace(bare, place=clean(log.place, 500))
    detail = log.words
    if log.cause is Cause.CHILD_GONE and (place := crashed_at(crash)):
        detail = f"{detail.rstrip('.')}: it crashed in C code that was called from {clean(place, 500)}"
    ended = replace(bare, reason=reason or bare.reason, ranks=ranks, detail=detail, facts=facts)
    if reason not in ECHOES:
        ended = replace(ended, cause=log.cause)
        from_outside = bare.signal in (*END_SIGNALS, signal.SIGKILL) or code is None
        ended = _by_signal(ended, log) if reason is None or from_outside else ended
        ended = _by_node(ended, record)
    return ended, is_own


def _by_signal(ended: Ended, log: log_errors.LogEnd) -> Ended:
    """Classify a rank whose log gives no reason, or that somebody ended: its log then counts for little."""
    if ended.signal in END_SIGNALS:
        has_reason = log.traceback or (ended.exit_code or 0) > 0
        detail = ended.detail if has_reason else ""
        raised = log.traceback and log.last and (ended.exit_code or 0) <= 0
        return replace(ended, reason=Reason.TERMINATED, detail=detail, cause=Cause.RAISED if raised else None)
    if ended.signal == signal.SIGKILL or ended.exit_code is None:
        reason = Reason.SIGNAL if ended.exit_code else Reason.UNKNOWN
        if log.traceback and log.last and ended.exit_code:
            return replace(ended, reason=reason, cause=Cause.RAISED)
        return replace(ended, reason=reason, detail="", cause=None, place="")
    reason = Reason.SIGNAL if ended.signal else Reason.EXIT_CODE
    return replace(ended, reason=reason)


def _by_node(ended: Ended, record: RankRecord) -> Ended:
    """Prefer the node's record over text that was only printed."""
    facts = ended.facts
    if facts is None:
        return ended
    killed = ended.reason in (Reason.SIGNAL, Reason.UNKNOWN) and ended.signal in (signal.SIGKILL, None)
    kill_at, ended_at = facts.memory_kill_at, record.ended_at
    memory_was_out = kill_at is not None and (ended_at is None or ended_at - kill_at <= MEMORY_KILL_S)
    if (killed or log_errors.child_was_killed(ended.detail)) and memory_was_out:
        return replace(ended, reason=Reason.OUT_OF_MEMORY, cause=Cause.KERNEL_KILL)
    if facts.address_space_bytes and log_errors.NO_ADDRESSES.search(ended.detail):
        return replace(ended, reason=Reason.OUT_OF_MEMORY, cause=None)
    no_room = ended.signal == signal.SIGBUS or re.search(log_errors.NO_SPACE, ended.detail)
    free = facts.shm_least_free_bytes
    if no_room and free is not None and free < (facts.shm_bytes or 0) * FULL_SHARE:
        return replace(ended, reason=Reason.SHARED_MEMORY_FULL, cause=None)
    return ended
