"""The cluster of a command: its inventory, and open connections to its machines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuctl.workflow.cluster.unprepared_machines import goes_on
from inventories.disk.store import ClusterFolder
from inventories.errors import NotFound
from inventories.job_file import describes, find
from inventories.machine import Inventory, Machine

if TYPE_CHECKING:
    from remote.sessions.session import Node


def load_inventory(folder: ClusterFolder, *, empty: bool = False) -> Inventory:
    """The cluster's inventory. Raises NotFound with the way to make one.

    `empty`: also one without a machine, as of a cluster whose runs start them.
    """
    if not folder.exists():
        job = find()
        if job is not None and describes(job, folder.name):
            raise NotFound(f"There is no cluster {folder.name}. Create it first, as {job} says: gpuctl up")
        raise NotFound(
            f"There is no cluster {folder.name}. Create one first: gpuctl up --provider local --count 2"
            + (f" --cluster {folder.name}" if folder.name != "default" else "")
        )
    inventory = folder.load()
    if not (empty or inventory.machines):
        raise NotFound(
            f"The cluster {folder.name} has no machines now. Where it has --max, a run starts its own. To have one "
            "by hand: gpuctl up --count 1"
        )
    return inventory


@contextmanager
def connected(
    folder: ClusterFolder,
    machines: Sequence[Machine],
    *,
    at_least: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Mapping[str, "Node"]]:
    """One open connection a machine, made all at once, by name; closed at the end.

    `at_least`: where as many answer, the others are left out, and `say` gets why. None: all have to.
    """
    from remote.errors import AuthenticationFailed, RemoteError, Unreachable
    from remote.sessions.connect import connect_all
    from remote.sessions.fanout import values

    outcomes = connect_all(machines, folder)
    try:
        there = [outcome for outcome in outcomes if outcome.error is None]
        if at_least is None or len(there) < at_least:
            there = outcomes
        for outcome in outcomes:
            if outcome not in there:
                say(f"left out: {outcome.error}")
        try:
            nodes = values(there)
        except RemoteError as error:
            silent = {
                outcome.node
                for outcome in there
                if isinstance(outcome.error, (Unreachable, AuthenticationFailed))
            }
            if advice := goes_on(folder, [machine for machine in machines if machine.name in silent]):
                between = "\n" if "\n" in str(error) else " "
                error.args = (f"{error}{between}{advice}.",)
            raise
        yield nodes
    finally:
        for outcome in outcomes:
            if outcome.value is not None:
                outcome.value.close()
