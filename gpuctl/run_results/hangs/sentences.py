"""Put a comparison of the ranks into a sentence, and into the document of `why --json`. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gpuctl.run_results.failures.stacks import Frame, collective, fetches_data, in_project, main_thread
from gpuctl.run_results.hangs.culprit import Finding, Kind
from gpuctl.run_results.hangs.rank import BUSY_BYTES_PER_S, Rank
from gpuctl.text import clean, duration, percent
from inventories.runs.hang import Culprit, Hang, HangVerdict, RankStacks, WaitingRank, alike
from remote.findings import number_ranges

MAX_NAMED = 4
"""Ranks, nodes or groups that a sentence names."""
SURE = (Kind.STOPPED, Kind.EXITED, Kind.DEAD_WORKER, Kind.DIFFERENT)
"""States that do not end without help, however long they have lasted."""
WAITS = (Kind.NOT_ASKED, Kind.NEVER_ENTERED, Kind.ALL_INSIDE, Kind.POINT_TO_POINT)
_NOW: dict[HangVerdict, str] = {
    "hung": "The run hangs: ",
    "slow": "The run is slow: ",
    "fine": "The run goes on. At this moment ",
    "unknown": "Whether the run hangs is not known: ",
}
_THEN: dict[HangVerdict, str] = {
    "hung": "The run hung",
    "slow": "The run was slow",
    "fine": "The run went on",
    "unknown": "Whether the run hung is not known",
}


def verdict_of(finding: Finding) -> HangVerdict:
    """Return whether the run hangs."""
    if finding.kind in SURE:
        return "hung"
    if finding.late is not None and not finding.waits_longer:
        return "slow"
    if finding.kind in WAITS or (finding.kind is Kind.BY_STACKS and finding.since_s is not None):
        return "hung" if finding.waits_long else "slow" if finding.waits_longer else "fine"
    if finding.kind is Kind.WORKS and finding.since_s is not None and not finding.waits_longer:
        return "fine"
    return "unknown"


def sentence_of(finding: Finding) -> str:
    """Return who waits for whom, without a capital letter and a full stop."""
    late = finding.late
    if late is not None and not finding.waits_longer:
        return (
            f"{named([late.rank])} comes last to {late.last} of {late.counted} collectives ({late.collective}), "
            f"{duration(late.late_s)} after the first rank; between two of them are {duration(late.interval_s)}. At "
            f"this moment {_doing(late.rank)}"
        )
    return _SENTENCES[finding.kind](finding)


def hang_of(
    run: str, finding: Finding, *, at: datetime, hung: bool = False, errors: tuple[str, ...] = ()
) -> Hang:
    """Return the document. `hung`: the node's watch says that the run has made no progress for too long."""
    verdict: HangVerdict = "hung" if hung else verdict_of(finding)
    begin = "The run starts: " if finding.kind is Kind.NOT_BEGUN else _NOW[verdict]
    late = None if finding.waits_longer else finding.late
    culprits = [(rank, finding.since_s) for rank in finding.culprits]
    return Hang(
        run=run,
        verdict=verdict,
        sentence=f"{begin}{clean(sentence_of(finding), 10_000)}.",
        culprits=tuple(_culprit(*culprit) for culprit in ([(late.rank, late.late_s)] if late else culprits)),
        waiting=tuple(_waiting(rank, finding) for rank in finding.waiting),
        ranks=tuple(_stacks(rank) for rank in finding.ranks),
        errors=errors,
        at=at.astimezone(UTC).isoformat(timespec="seconds"),
    )


def past_tense(hang: Hang) -> Hang:
    """Return a hang in the past tense, with its time; a hang already in the past tense as it is."""
    now = _NOW[hang.verdict]
    if not hang.sentence.startswith(now):
        return hang
    when = (
        ""
        if hang.at is None
        else f" ({datetime.fromisoformat(hang.at).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC)"
    )
    return replace(hang, sentence=f"{_THEN[hang.verdict]}{when}: {hang.sentence.removeprefix(now)}")


def _culprit(rank: Rank, since_s: float | None) -> Culprit:
    at = rank.at
    return Culprit(
        rank=rank.rank,
        node=rank.node,
        file=at.file if at else None,
        line=at.line if at else None,
        function=at.function if at else None,
        since_s=None if since_s is None else round(since_s, 1),
        place=rank.place or None,
        raised=clean(rank.raised, 2000) or None,
    )


def _waiting(rank: Rank, finding: Finding) -> WaitingRank:
    at = rank.at
    entered = (finding.inside or {}).get(rank.rank, finding.collective)
    return WaitingRank(
        rank=rank.rank,
        node=rank.node,
        collective=entered.name if entered else collective(rank.frames),
        sequence=entered.sequence if entered else None,
        file=at.file if at else None,
        line=at.line if at else None,
        function=at.function if at else None,
    )


def _stacks(rank: Rank) -> RankStacks:
    activity, last = rank.activity, rank.last()
    return RankStacks(
        rank=rank.rank,
        node=rank.node,
        state=activity.state if activity else None,
        begun=rank.begun,
        cpu=activity.cpu if activity else None,
        last_collective=f"{last.name} #{last.sequence}" if last else None,
        at=_at(rank.at) if rank.at else None,
        stacks=activity.stacks if activity else "",
    )


def _waiters(waiting: Sequence[Rank], finding: Finding) -> str:
    """`the other 3`, `rank 0`, `ranks 2 and 3`."""
    if len(waiting) == 1:
        return f"rank {waiting[0].rank} waits"
    if len(waiting) + len(finding.culprits) == len(finding.ranks):
        return f"the other {len(waiting)} wait"
    return f"{len(waiting)} ranks wait"


def _at(frame: Frame | None) -> str:
    """`load_batch, data.py:41`."""
    return "a place that is not known" if frame is None else frame.place


def _line(ranks: Sequence[Rank]) -> str:
    """` (train.py:88)`: where the first of these ranks is; empty where it is not known."""
    at = next((rank.at for rank in ranks if rank.at is not None), None)
    return "" if at is None else f" ({at.file}:{at.line})"


def _number(finding: Finding) -> str:
    """`all_reduce #2 (train.py:88)`: the collective in which ranks wait."""
    entry = finding.collective
    if entry is not None:
        group = "" if entry.title in ("", "default_pg") else f" of {entry.title}"
        return f"{entry.name} #{entry.sequence}{group}{_line(finding.waiting)}"
    name = next((name for rank in finding.waiting if (name := collective(rank.frames))), "a collective")
    return f"{name}{_line(finding.waiting)}"


def _for(finding: Finding) -> str:
    return "" if finding.since_s is None or finding.since_s < 1 else f", for {duration(finding.since_s)}"


def _doing(rank: Rank, *, load: bool = True) -> str:
    """Return the state of a rank that others wait for: `it is in load_batch, data.py:41`.

    `load`: with its share of a CPU.
    """
    if rank.activity is None:
        return "its node could not be asked"
    if not rank.begun:
        return "it has not started yet"
    if rank.exited:
        return "its process is gone"
    if rank.raised:
        thread = f"; a thread is in {_at(rank.at)}" if rank.at else ""
        return f"it raised {rank.raised}, and its process has not ended{thread}"
    if rank.holds_lock:
        return f"it is in C code that was called from {_at(rank.at)}, and holds Python's lock"
    inside = next(iter(rank.inside().values()), None)
    if inside is not None:
        return f"it waits in {inside.name} #{inside.sequence}{_line([rank])}"
    if rank.waits_for_data:
        code, stacks = rank.activity.code, [main_thread(child.stacks) for child in rank.activity.children]
        at = next((in_project(frames, code) for frames in stacks if fetches_data(frames)), None)
        busy = "" if at is None else f"; a worker is in {_at(at)}"
        return f"it waits for its DataLoader's workers in {_at(rank.at)}{busy}"
    if not rank.frames and rank.activity.state is None:
        return "where it was is not known"
    if not rank.frames:
        channel = f" ({rank.activity.wait_channel})" if rank.activity.wait_channel else ""
        return f"its place is not known: its process is in state {rank.activity.state}{channel}"
    return f"it is in {_at(rank.at)}{_work(rank) if load else ''}"


def _work(rank: Rank) -> str:
    """`, at work (98 % of a CPU)`; empty of one that only waits."""
    activity = rank.activity
    if activity is None or not rank.works:
        return ""
    does = [f"{percent(activity.cpu, 0)} of a CPU"] if (activity.cpu or 0) >= 0.1 else []
    moved = activity.io_bytes_per_s or 0
    does += [f"{moved / 1e6:.0f} MB/s"] if moved >= BUSY_BYTES_PER_S else []
    return f", at work ({', '.join(does)})" if does else ", at work"


def _all_doing(ranks: Sequence[Rank]) -> str:
    """Return the states of these ranks, grouped by state."""
    if len(ranks) == 1:
        return _doing(ranks[0])
    short = len(ranks) <= MAX_NAMED
    groups = alike(ranks, lambda rank: _doing(rank, load=short))
    return listed([f"{numbered(group)}: {_of_each(does, group)}" for does, group in groups], "; ")


_PLURALS = {
    "it is ": "they are ",
    "it waits ": "they wait ",
    "it has ": "they have ",
    "it raised ": "they raised ",
}


def _of_each(does: str, group: Sequence[Rank]) -> str:
    """`they are in load, data.py:4` of several ranks."""
    if len(group) == 1:
        return does
    for singular, plural in _PLURALS.items():
        if does.startswith(singular):
            return f"{plural}{does.removeprefix(singular)}".replace(
                "and holds Python's", "and hold Python's"
            ).replace("its process has", "their processes have")
    return does


def _wait_for_them(finding: Finding) -> str:
    if not finding.waiting:
        return ""
    return f"; {_waiters(finding.waiting, finding)} in {_number(finding)}{_for(finding)}"


def _never_entered(finding: Finding) -> str:
    never, waiting = finding.culprits, finding.waiting
    entered = "never entered" if finding.waits_longer else "has not yet entered"
    if len(never) > max(len(waiting), MAX_NAMED):
        waits = "waits" if len(waiting) == 1 else "wait"
        remaining = "the others" if len(never) + len(waiting) == len(finding.ranks) else f"{len(never)} ranks"
        have = f"{remaining} {entered.replace('has', 'have')}"
        where = f"{named(waiting)} {waits} in {_number(finding)}"
        return f"{where}, which {have}; {_all_doing(never)}{_for(finding)}"
    waits = _waiters(waiting, finding)
    return (
        f"{named(never)} {entered} {_number(finding)}, which {waits} in; {_all_doing(never)}{_for(finding)}"
    )


def _different(finding: Finding) -> str:
    inside = finding.inside or {}
    ranks = [rank for rank in finding.ranks if rank.rank in inside]
    names = {inside[rank.rank].name for rank in ranks}

    def entered(rank: Rank) -> str:
        entry = inside[rank.rank]
        return entry.name + (f" of {entry.sizes}" if len(names) == 1 else "") + _line([rank])

    groups = [f"{named(group)} {_are(group)} in {operation}" for operation, group in alike(ranks, entered)]
    number = finding.collective.sequence if finding.collective else "?"
    subject = "collectives" if len(names) > 1 else "sizes"
    return f"ranks are in different {subject} at number {number}: {listed(groups, ', ')}{_for(finding)}"


def _are(ranks: Sequence[Rank]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _all_inside(finding: Finding) -> str:
    lost = "what they send does not arrive (a link that was dropped, a firewall), or the data is large"
    if len(finding.waiting) < len(finding.ranks) and any(_is_past(rank, finding) for rank in finding.ranks):
        subject = f"{named(finding.waiting)} {_are(finding.waiting)} in {_number(finding)}"
        return f"{subject}, which the others have left{_for(finding)}; none is missing, so {lost}"
    return f"all {len(finding.waiting)} ranks are in {_number(finding)}{_for(finding)}; none is missing, so {lost}"


def _is_past(rank: Rank, finding: Finding) -> bool:
    """Return whether a rank has left the collective in which others wait."""
    entry = finding.collective
    last = None if entry is None else rank.last(entry.group)
    return entry is not None and last is not None and (last.sequence, last.over) > (entry.sequence, False)


def _stopped(finding: Finding) -> str:
    ranks = finding.culprits
    return (
        f"{named(ranks)} {_are(ranks)} stopped (state T: SIGSTOP or a debugger; kill -CONT lets the process go on)"
        f"{_wait_for_them(finding)}"
    )


def _dead_worker(finding: Finding) -> str:
    (rank, *_) = finding.culprits
    child = rank.dead_child
    assert child is not None
    state = "has died" if child.state == "Z" else "is stopped"
    return (
        f"a DataLoader worker of {named([rank])} {state} (process {child.pid}); the rank waits for it in "
        f"{_at(rank.at)}{_wait_for_them(finding)}"
    )


def _point_to_point(finding: Finding) -> str:
    inside = finding.inside or {}
    groups = alike(finding.waiting, lambda rank: f"{inside[rank.rank].name}{_line([rank])}")
    parts = [
        f"{named(group)} {'waits' if len(group) == 1 else 'wait'} in {operation}"
        for operation, group in groups
    ]
    waits = f"{listed(parts, ', ')}{_for(finding)}"
    if not finding.culprits:
        return f"{waits}; no rank is elsewhere"
    do = "does" if len(finding.culprits) == 1 else "do"
    return f"{waits}; {named(finding.culprits)} {do} not: {_all_doing(finding.culprits)}"


def _by_stacks(finding: Finding) -> str:
    if not finding.culprits:
        return f"all {len(finding.waiting)} ranks are in {_number(finding)}"
    if all(collective(rank.frames) for rank in finding.culprits):
        ranks = [*finding.culprits, *finding.waiting]
        groups = alike(ranks, lambda rank: f"{collective(rank.frames)}{_line([rank])}")
        parts = [f"{named(group)} {_are(group)} in {operation}" for operation, group in groups]
        return f"ranks are in different collectives: {listed(parts, ', ')}{_for(finding)}"
    return (
        f"{named(finding.culprits)} {_are(finding.culprits)} not in {_number(finding)}, in "
        f"which {_waiters(finding.waiting, finding)}; {_all_doing(finding.culprits)}"
    )


def _driver(finding: Finding) -> str:
    (rank, *_) = finding.ranks
    return (
        "what the script's Ray workers do is not known here, as Ray starts them; of the script itself, on "
        f"{rank.node}, {_doing(rank)}. `ray stack`, with py-spy on a node, shows its workers"
    )


_SENTENCES: dict[Kind, Callable[[Finding], str]] = {
    Kind.STOPPED: _stopped,
    Kind.EXITED: lambda hang: f"the process of {named(hang.culprits)} has ended{_wait_for_them(hang)}",
    Kind.DEAD_WORKER: _dead_worker,
    Kind.NEVER_ENTERED: _never_entered,
    Kind.DIFFERENT: _different,
    Kind.NOT_ASKED: lambda finding: f"{named(finding.culprits)} could not be asked{_wait_for_them(finding)}",
    Kind.ALL_INSIDE: _all_inside,
    Kind.POINT_TO_POINT: _point_to_point,
    Kind.BY_STACKS: _by_stacks,
    Kind.DRIVER: _driver,
    Kind.NOT_BEGUN: lambda _: "none of its ranks has begun yet",
    Kind.WORKS: lambda finding: f"no rank waits in a collective; {_all_doing(finding.ranks)}",
    Kind.IDLE: lambda hang: (
        f"no rank works, nor waits in an operation that torch records; {_all_doing(hang.ranks)}"
    ),
    Kind.UNKNOWN: lambda _: "no rank reported its stacks",
}


def numbered(ranks: Sequence[Rank]) -> str:
    """Return `rank 1`, `ranks 0-61,63`."""
    numbers = number_ranges(rank.rank for rank in ranks)
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


def named(ranks: Sequence[Rank]) -> str:
    """Return `rank 1 on beta`, `ranks 0 on alpha and 2 on beta`, `ranks 0-61,63 on 8 nodes`."""
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} on {where(ranks[0])}"
    if len(ranks) <= MAX_NAMED:
        parts = [f"{rank.rank} on {where(rank)}" for rank in ranks]
        return f"ranks {', '.join(parts[:-1])} and {parts[-1]}"
    nodes = list(dict.fromkeys(rank.node for rank in ranks))
    return f"{numbered(ranks)} on {', '.join(nodes) if len(nodes) < MAX_NAMED else f'{len(nodes)} nodes'}"


def where(rank: Rank) -> str:
    """Return `beta`, `beta (stage 2 of 4)`."""
    return f"{rank.node} ({rank.place})" if rank.place else rank.node


def listed(parts: Sequence[str], joint: str) -> str:
    """Return the parts as one text; of many the first ones and the number of the others."""
    more = [f"and {len(parts) - MAX_NAMED} more"] if len(parts) > MAX_NAMED else []
    return joint.join([*parts[:MAX_NAMED], *more])
