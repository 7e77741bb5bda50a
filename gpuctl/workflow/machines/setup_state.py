"""Machines that are there and that no `up` has prepared: it was interrupted, failed, or did not wait."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuctl.errors import Failed
from gpuctl.text import for_cluster
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.specs.setup_steps import SetupStep, digest

READY = "ready"
"""In the journal: machines that an `up` called ready, by id."""
SETUP = "setup"
"""In the journal: the `steps` that each new machine runs once; the last entry counts."""
SET_UP = "set up"
"""In the journal: `machines` that have run them, by identity, and the steps' `digest`."""
SETTLED = "machines settled"
"""In the journal: an `up` has found or made all machines that there are to be, and `ended` so many others."""
MOST_NAMED = 3


def ready_ids(folder: ClusterFolder) -> frozenset[str]:
    """The ids of the machines that an `up` has called ready."""
    return _ready_in(folder.journal.read())


def _ready_in(entries: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(one for entry in entries if entry["event"] == READY for one in entry["machines"])


def setup_steps(folder: ClusterFolder) -> tuple[SetupStep, ...]:
    """The steps that the cluster's new machines run."""
    return _steps_in(folder.journal.read())


def _steps_in(entries: Sequence[Mapping[str, Any]]) -> tuple[SetupStep, ...]:
    steps = [entry["steps"] for entry in entries if entry["event"] == SETUP]
    last = steps[-1] if steps else ()
    return tuple(SetupStep(kind=one["kind"], text=one["text"], folder=one.get("folder")) for one in last)


def not_set_up(
    folder: ClusterFolder, machines: Sequence[Machine], steps: Sequence[SetupStep]
) -> list[Machine]:
    """The machines that have not run these steps; none where there are no steps."""
    return _lacking(folder.journal.read(), machines, steps)


def _lacking(
    entries: Sequence[Mapping[str, Any]], machines: Sequence[Machine], steps: Sequence[SetupStep]
) -> list[Machine]:
    if not steps:
        return []
    wanted = digest(steps)
    ran = [entry for entry in entries if entry["event"] == SET_UP and entry["digest"] == wanted]
    done = {one for entry in ran for one in entry["machines"]}
    return [machine for machine in machines if identity(machine) not in done]


def without_setup(folder: ClusterFolder, machines: Sequence[Machine]) -> list[Machine]:
    """The machines that have not run their cluster's setup; none where it has none."""
    entries = folder.journal.read()
    return _lacking(entries, machines, _steps_in(entries))


def identity(machine: Machine) -> str:
    """What tells a machine from one that takes its place: its id; of one whose owner named it, its address."""
    return machine.id if machine.id != machine.name else f"{machine.name} {machine.host}:{machine.port}"


def check_set_up(folder: ClusterFolder, machines: Sequence[Machine]) -> None:
    """Raise Failed where a machine has not run the setup of its cluster."""
    if lacking := without_setup(folder, machines):
        names = _some([machine.name for machine in lacking])
        raise Failed(
            f"The setup of the cluster has not ended well on {names}, and a run may need it. `gpuctl up` runs it "
            "again, `gpuctl up -f FILE` as the file has it now."
        )


def unprepared(folder: ClusterFolder, machines: Sequence[Machine]) -> list[str]:
    """The names of the machines that are there and were never ready, or lack the setup; none where the journal does
    not tell.
    """
    try:
        entries = folder.journal.read()
    except InventoryError:
        return []  # what is said of it is advice alone
    if not any(entry["event"] == "up" for entry in entries):
        return []
    lacking = {machine.id for machine in _lacking(entries, machines, _steps_in(entries))}
    ready = _ready_in(entries) - lacking
    return [m.name for m in machines if m.state != "gone" and m.id not in ready]


def goes_on(folder: ClusterFolder, machines: Sequence[Machine]) -> str:
    """What to know of those that are not prepared, as a clause: `y1-0 is not prepared yet: …`; empty: nothing."""
    names = unprepared(folder, machines)
    if not names:
        return ""
    are = "is" if len(names) == 1 else "are"
    return for_cluster(f"{_some(names)} {are} not prepared yet: `gpuctl up` continues", folder.name)


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
