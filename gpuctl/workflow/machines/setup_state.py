"""The setup of machines, and machines that no `up` has prepared: it was interrupted, failed, or did not wait."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuctl.errors import Failed
from gpuctl.text import for_cluster
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.specs.setup_steps import SetupStep, digest
from inventories.text import first_of, plural

if TYPE_CHECKING:
    from remote.fabfile import Fabfile, Step

READY = "ready"
"""In the journal: machines that an `up` called ready, by id."""
SETUP = "setup"
"""In the journal: the `steps` that each new machine runs once; the last entry counts."""
SET_UP = "set up"
"""In the journal: `machines` that have run them, by identity, and the steps' `digest`."""
SETTLED = "machines settled"
"""In the journal: an `up` has made or listed all machines of its plan, and `ended` this number of others."""
MAX_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The steps to run, and the machines to run them on."""

    steps: tuple[SetupStep, ...]
    machines: tuple[str, ...]
    """Names of the machines that have not run them."""
    tasks: "Mapping[SetupStep, Sequence[Step]]" = field(default_factory=dict)
    """Steps that name tasks → their tasks."""
    fabfile: "Fabfile | None" = None

    @property
    def where(self) -> str:
        """Return the machines, in a clause."""
        return named_machines(self.machines)


NO_SETUP = Setup(steps=(), machines=())


def named_machines(names: Sequence[str]) -> str:
    """Return the names of machines, or the number of many."""
    return ", ".join(names) if len(names) <= 5 else plural(len(names), "machine")


def ready_ids(folder: ClusterFolder) -> frozenset[str]:
    """Return the ids of the machines that an `up` has called ready."""
    return _ready_in(folder.journal.read())


def _ready_in(entries: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(key for entry in entries if entry["event"] == READY for key in entry["machines"])


def setup_steps(folder: ClusterFolder) -> tuple[SetupStep, ...]:
    """Return the steps that the cluster's new machines run."""
    return _steps_in(folder.journal.read())


def _steps_in(entries: Sequence[Mapping[str, Any]]) -> tuple[SetupStep, ...]:
    steps = [entry["steps"] for entry in entries if entry["event"] == SETUP]
    last = steps[-1] if steps else ()
    return tuple(SetupStep(kind=step["kind"], text=step["text"], folder=step.get("folder")) for step in last)


def not_set_up(
    folder: ClusterFolder, machines: Sequence[Machine], steps: Sequence[SetupStep]
) -> list[Machine]:
    """Return the machines that have not run these steps. Empty also without steps."""
    return _lacking(folder.journal.read(), machines, steps)


def _lacking(
    entries: Sequence[Mapping[str, Any]], machines: Sequence[Machine], steps: Sequence[SetupStep]
) -> list[Machine]:
    if not steps:
        return []
    steps_digest = digest(steps)
    ran = [entry for entry in entries if entry["event"] == SET_UP and entry["digest"] == steps_digest]
    done = {key for entry in ran for key in entry["machines"]}
    return [machine for machine in machines if identity(machine) not in done]


def without_setup(folder: ClusterFolder, machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines that have not run their cluster's setup. Empty also without a setup."""
    entries = folder.journal.read()
    return _lacking(entries, machines, _steps_in(entries))


def identity(machine: Machine) -> str:
    """Return the identity of this very machine, not of a replacement: its id, or a person's machine's address."""
    return machine.id if machine.id != machine.name else f"{machine.name} {machine.host}:{machine.port}"


def check_set_up(folder: ClusterFolder, machines: Sequence[Machine]) -> None:
    """Raise Failed where a machine has not run the setup of its cluster."""
    if lacking := without_setup(folder, machines):
        names = first_of([machine.name for machine in lacking], MAX_NAMED)
        raise Failed(
            f"The setup of the cluster has not ended well on {names}, and a run may need it. `gpuctl up` runs it "
            "again, `gpuctl up -f FILE` as the file has it now."
        )


def unprepared(folder: ClusterFolder, machines: Sequence[Machine]) -> list[str]:
    """Return the names of existing machines that were never ready, or lack the setup. Empty without a journal."""
    try:
        entries = folder.journal.read()
    except InventoryError:
        return []  # its callers only give advice
    if not any(entry["event"] == "up" for entry in entries):
        return []
    lacking = {machine.id for machine in _lacking(entries, machines, _steps_in(entries))}
    ready = _ready_in(entries) - lacking
    return [m.name for m in machines if m.state != "gone" and m.id not in ready]


def unprepared_note(folder: ClusterFolder, machines: Sequence[Machine]) -> str:
    """Return the clause `y1-0 is not prepared yet: …` on machines that are not prepared. Empty: all are."""
    names = unprepared(folder, machines)
    if not names:
        return ""
    are = "is" if len(names) == 1 else "are"
    return for_cluster(
        f"{first_of(names, MAX_NAMED)} {are} not prepared yet: `gpuctl up` continues", folder.name
    )
