"""The cluster of a command: its inventory, and open connections to its machines."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuctl.workflow.machines.setup_state import unprepared_note
from inventories.disk.store import ClusterFolder, Store
from inventories.errors import NotFound
from inventories.machine import Inventory, Machine
from inventories.specs.job_file import describes, find
from inventories.text import did_you_mean

if TYPE_CHECKING:
    from remote.sessions.session import Node


def load_inventory(folder: ClusterFolder, *, empty: bool = False) -> Inventory:
    """Return the cluster's inventory. Raises NotFound with the command that creates one.

    `empty`: also an inventory without machines, as of a cluster whose runs start them.
    """
    if not folder.exists():
        raise unknown_cluster(folder)
    inventory = folder.load()
    if not (empty or inventory.machines):
        raise NotFound(
            f"The cluster {folder.name} has no machines now. Where it has --max, a run starts its own. To have one "
            "by hand: gpuctl up --count 1"
        )
    return inventory


def unknown_cluster(folder: ClusterFolder, *, of_runs: Collection[str] = ()) -> NotFound:
    """Return the error for a cluster that does not exist: the name most like it, or the way to create it.

    `of_runs`: clusters that may be removed, and are meant where the command is about runs.
    """
    name = folder.name
    job = find()
    if job is not None and describes(job, name):
        return NotFound(f"There is no cluster {name}. Create it first, as {job} says: gpuctl up")
    existing = [cluster.name for cluster in Store(folder.path.parents[1]).clusters()]
    if near := did_you_mean(name, [*existing, *of_runs]):
        all_names = (
            "gpuctl runs --all` lists the runs of all clusters" if of_runs else "gpuctl clusters` lists all"
        )
        return NotFound(f"There is no cluster {name}{near} `{all_names}.")
    choice = f" These exist: {', '.join(existing)}; --cluster NAME chooses one." if existing else ""
    create = "gpuctl up --provider local --count 2" + (f" --cluster {name}" if name != "default" else "")
    return NotFound(f"There is no cluster {name}.{choice} Create {'it' if choice else 'one first'}: {create}")


@contextmanager
def connected(
    folder: ClusterFolder,
    machines: Sequence[Machine],
    *,
    at_least: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Mapping[str, "Node"]]:
    """Connect to all machines at once; yield the connections by name, and close them at the end.

    `at_least`: if that many answer, the others are left out, and `say` gets the reason. `None`: all must answer.
    """
    from remote.errors import AuthenticationFailed, RemoteError, Unreachable
    from remote.fanout import values
    from remote.sessions.connect import connect_all

    outcomes = connect_all(machines, folder)
    try:
        answers = [outcome for outcome in outcomes if outcome.error is None]
        if at_least is None or len(answers) < at_least:
            answers = outcomes
        for outcome in outcomes:
            if outcome not in answers:
                say(f"left out: {outcome.error}")
        try:
            nodes = values(answers)
        except RemoteError as error:
            silent = {
                outcome.node
                for outcome in answers
                if isinstance(outcome.error, (Unreachable, AuthenticationFailed))
            }
            if advice := unprepared_note(folder, [machine for machine in machines if machine.name in silent]):
                between = "\n" if "\n" in str(error) else " "
                error.args = (f"{error}{between}{advice}.",)
            raise
        yield nodes
    finally:
        for outcome in outcomes:
            if outcome.value is not None:
                outcome.value.close()
