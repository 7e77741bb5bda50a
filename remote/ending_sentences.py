"""The sentences on ranks that save before they end, and on processes that they leave behind."""

from collections.abc import Iterator, Mapping, Sequence

from inventories.runs.run import LeftProcess, NodeEnding
from inventories.text import listed

SHORT_S = 1.0
"""Ranks that end sooner are not worth a line."""


def interrupt_text(begun: bool, ended: bool, grace_s: float) -> str:
    """Return the line on the first Ctrl-C. `begun`: whether a rank has; `ended`: whether all ranks have."""
    if not begun:
        return "stopping the run on every node before its ranks begin"
    grace = seconds_text(grace_s)
    if ended:
        return f"the ranks have ended; processes that they left behind get up to {grace}; Ctrl-C again kills them"
    return f"stopping the run on every node: ranks are given up to {grace} to save; Ctrl-C again kills them"


def waiting_text(ending: NodeEnding) -> str:
    """Return the text on the ranks and processes that a node waits for."""
    grace = seconds_text(ending.grace_s)
    if ending.active:
        still = "still runs" if len(ending.active) == 1 else "still run"
        return f"{ranks_text(ending.active)} {still}; ranks are given up to {grace} to save"
    return f"its ranks have ended; waiting up to {grace} for what they left behind: {_processes(ending.left)}"


def ended_lines(endings: Mapping[str, NodeEnding]) -> Iterator[str]:
    """Yield the lines on how a run's ranks were ended: the time, the killed ranks, the processes left behind.

    `endings`: by node.
    """
    killed = [ending for ending in endings.values() if ending.killed]
    took = [
        ending
        for ending in endings.values()
        if ending.signal and not ending.killed and ending.seconds is not None and ending.seconds >= SHORT_S
    ]
    if killed:
        ranks = sorted(rank for ending in killed for rank in ending.killed)
        were, last = "was" if len(ranks) == 1 else "were", max(killed, key=lambda ending: ending.grace_s)
        since = last.signal or "the failure"
        late = f" did not end within {seconds_text(last.grace_s)} of {since} and" * (last.grace_s > 0)
        yield f"{ranks_text(ranks)}{late} {were} killed{_more_time(last, several=len(ranks) > 1)}"
    if took:
        last = max(took, key=lambda ending: ending.seconds or 0.0)
        yield f"the {'other ' * bool(killed)}ranks ended within {seconds_text(last.seconds or 0.0)} of {last.signal}"
    for node, ending in endings.items():
        if of_node := [left for left in ending.left if left.killed]:
            yield f"{node}: killed what the ranks left behind: {_processes(of_node)}"
        if of_node := [left for left in ending.left if not left.killed]:
            yield f"{node}: what the ranks left behind ended by itself: {_processes(of_node)}"


_AT_ONCE = {"SIGINT": "a second Ctrl-C", "SIGTERM": "gpuctl stop --stop-grace 0s"}
"""Signal → how the user kills the ranks without waiting."""


def _more_time(ending: NodeEnding, *, several: bool) -> str:
    """Return the sentences on ranks that were killed: Python interrupts no rank that waits in a collective."""
    if ending.grace_s <= 0:
        return ""
    at_once = _AT_ONCE.get(ending.signal or "", "")
    if not several or not at_once:
        return "; --stop-grace gives ranks that save more time"
    return (
        f". Ranks that wait for each other do not end in any time, and {at_once} kills them at once; --stop-grace "
        "gives ranks that save more time"
    )


def seconds_text(seconds: float) -> str:
    """`30 s`, `2.5 s`."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:g} s"


def ranks_text(ranks: Sequence[int]) -> str:
    """Return `rank 1`, `ranks 0, 1 and 2`."""
    names = listed([str(rank) for rank in ranks], limit=8)
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def _processes(left: Sequence[LeftProcess]) -> str:
    return listed([f"{process.command} (pid {process.pid})" for process in left], limit=3)
