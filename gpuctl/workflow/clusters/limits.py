"""The limits of a cluster whose machines runs start and end, and a start that was cut off."""

from dataclasses import dataclass

from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.setup_state import SETTLED
from inventories.disk.store import ClusterFolder
from inventories.errors import Locked
from provision.clouds import RENTED
from provision.rented.state import CloudState

HOW_TO_END = "`gpuctl up` ends those that no run needs"


STARTED = "machines started"
"""In the journal: a run's start of machines was begun; a later SETTLED completes it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The number of a cluster's machines between runs, and the maximum during a run."""

    min: int
    max: int


def provider_in_journal(folder: ClusterFolder) -> str | None:
    """Return the provider that the cluster was begun with. `None`: no `up` has begun it."""
    entries = [entry for entry in folder.journal.read() if entry["event"] == "up"]
    return str(entries[-1]["provider"]) if entries else None


def limits_of(folder: ClusterFolder) -> Limits | None:
    """Return the cluster's limits. `None`: no limits, so all its machines stay."""
    record = CloudState(folder).load() if provider_in_journal(folder) in RENTED else None
    if record is None or record.max_count is None:
        return None
    return Limits(min=record.min_count or 0, max=record.max_count)


def start_cut_off(folder: ClusterFolder) -> str:
    """Return a warning if a start of machines was cut off, and the inventory may lack some. Empty: no such start."""
    if not folder.exists():
        return ""
    limits = limits_of(folder)
    if (
        limits is None
        or len(load_inventory(folder, empty=True).machines) > limits.min
        or not has_cut_off_start(folder)
    ):
        return ""
    try:
        with folder.claim_machines("status"):
            return f"A run's start of machines did not come to its end. {note_on_machines(folder)}"
    except Locked:
        return ""  # that start is still in progress


def has_cut_off_start(folder: ClusterFolder) -> bool:
    """Return whether the journal has a start of machines without its end."""
    events = [entry["event"] for entry in folder.journal.read() if entry["event"] in (STARTED, SETTLED)]
    return events[-1:] == [STARTED]


def note_on_machines(folder: ClusterFolder) -> str:
    """Return the note that machines of a cut-off start may be billed, with the commands that end them."""
    return (
        f"Machines of {folder.name} may still be there, and billed: {HOW_TO_END}, `gpuctl down` removes all."
    )
