"""Machines that are there and that no `up` has prepared: it was interrupted, failed, or did not wait."""

from collections.abc import Sequence

from gpuctl.text import for_cluster
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.store import ClusterFolder

READY = "ready"
"""In the journal: machines that an `up` called ready, by id."""
MOST_NAMED = 3


def ready_ids(folder: ClusterFolder) -> frozenset[str]:
    """The ids of the machines that an `up` has called ready."""
    entries = folder.journal.read()
    return frozenset(one for entry in entries if entry["event"] == READY for one in entry["machines"])


def unprepared(folder: ClusterFolder, machines: Sequence[Machine]) -> list[str]:
    """The names of the machines that are there and were never ready; none where the journal does not tell."""
    try:
        if not any(entry["event"] == "up" for entry in folder.journal.read()):
            return []
        ready = ready_ids(folder)
    except InventoryError:
        return []  # what is said of it is advice alone
    return [m.name for m in machines if m.state != "gone" and m.id not in ready]


def goes_on(folder: ClusterFolder, machines: Sequence[Machine]) -> str:
    """What to know of those that are not prepared, as a clause: `y1-0 is not prepared yet: …`; empty: nothing."""
    names = unprepared(folder, machines)
    if not names:
        return ""
    more = len(names) - MOST_NAMED
    who = ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    are = "is" if len(names) == 1 else "are"
    return for_cluster(f"{who} {are} not prepared yet: `gpuctl up` goes on", folder.name)
