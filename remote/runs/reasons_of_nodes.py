"""Which reasons a node may give for an end, and the facts that each needs: anything else is no answer of ours."""

from collections.abc import Mapping

from inventories.runs.end_reasons import STOPS, Ended, Reason

OF_A_NODE: Mapping[Reason, tuple[str, ...]] = {
    Reason.NOT_STARTED: ("program",),
    Reason.RAY_ENDED: (),
    Reason.RAY_LATE: ("rank", "seconds"),
    Reason.DISK_FULL: ("free_bytes",),
    Reason.SHUT_DOWN: (),
    Reason.REBOOTED: (),
    Reason.CONTAINER_RESTARTED: (),
    Reason.RUNNER_KILLED: (),
    Reason.NO_RECORD: ("detail",),
    **dict.fromkeys(STOPS, ()),
    # Of a run that the release before started.
    Reason.TOLD: ("detail",),
}
"""Of its part in a run → the facts without which it says nothing. A stop's reason is what the node was told."""
OF_A_RANK: Mapping[Reason, tuple[str, ...]] = {Reason.NOT_STARTED: ("program",)}
"""Of a rank, beside its exit status."""


def problem(ended: Ended | None, known: Mapping[Reason, tuple[str, ...]]) -> str | None:
    """Why it is not taken from a node; None where it is."""
    if ended is None:
        return None
    if ended.reason not in known:
        return f"'{ended.reason}' is nothing that a node says"
    missing = [fact for fact in known[ended.reason] if getattr(ended, fact) in (None, "")]
    return f"'{ended.reason}' without {' and '.join(missing)} says nothing" if missing else None
