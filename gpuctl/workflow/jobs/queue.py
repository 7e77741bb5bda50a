"""`queue ls`, `move`, `rm`, `pause` and `resume`: the cluster's queue, which its first node keeps."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.runs.queued_runs import first_machine, mirrored, take_in
from gpuctl.workflow.runs.unfinished_runs import open_runs
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from inventories.runs.queue import Queue

if TYPE_CHECKING:
    from remote.runs.queue import Action
    from remote.sessions.session import Node


def show(app: App) -> Queue:
    """Return the queue, and bring the results of its runs that have ended here.

    If the first node does not answer: as it last reported it, with a note.
    """
    from remote.errors import RemoteError
    from remote.runs.queue import state_of

    folder = _folder(app)
    try:
        queue = _ask(app, folder, state_of)
        _continue_others(app, folder, queue)
    except RemoteError as error:
        queue = mirrored(folder)
        app.output.say(
            f"note: the queue as of {queue.as_of or 'never'}, as its node does not answer: {error}"
        )
        return queue
    open_runs(app, folder.name)
    return queue


def change(app: App, action: "Action", entries: Sequence[str] = (), place: str = "") -> Queue:
    """Change the queue and return it. `place`: of a move: `first`, `last`, or the entry to be in front of."""
    from remote.runs.queue import change

    if place in entries:
        raise Usage(f"Entry {place} can't move in front of itself: name another entry.")
    return _ask(app, _folder(app), lambda node: change(node, action, entries, place))


def _continue_others(app: App, folder: ClusterFolder, queue: Queue) -> None:
    """Have the other machines of runs that wait follow the queue again, should their process be missing."""
    from remote.fanout import fan_out
    from remote.runs.queue import continue_on
    from remote.sessions.connect import connect

    if not any(entry.nnodes > 1 and not entry.ended for entry in queue.entries):
        return
    first = first_machine(folder)

    def ask(machine: Machine) -> None:
        with connect(machine, folder) as node:
            continue_on(node)

    others = {machine.name: machine for machine in folder.load().machines if machine.name != first.name}
    for outcome in fan_out(ask, others):
        if outcome.error is not None:
            app.output.say(f"note: {outcome.node} does not follow the queue: {outcome.error}")


def _folder(app: App) -> ClusterFolder:
    folder = app.store.cluster(app.options.cluster)
    load_inventory(folder)
    return folder


def _ask(app: App, folder: ClusterFolder, question: "Callable[[Node], Queue]") -> Queue:
    """Ask the first node, and save its answer here."""
    from remote.sessions.connect import connect

    with connect(first_machine(folder), folder) as node:
        queue = question(node)
        take_in(app, folder, node, queue)
    return queue
