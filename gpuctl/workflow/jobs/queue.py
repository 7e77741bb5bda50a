"""`queue ls`, `move`, `rm`, `pause` and `resume`: the cluster's queue, which its first node keeps."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.errors import Failed, Usage
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.runs.queued_runs import first_machine, mirrored, take_in, tell_others
from gpuctl.workflow.runs.unfinished_runs import open_runs
from inventories.disk.store import ClusterFolder
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
    from remote.errors import NodeFailed
    from remote.runs.queue import change

    def ask(node: "Node") -> Queue:
        try:
            return change(node, action, entries, place)
        except NodeFailed as error:
            if not entries or type(error) is not NodeFailed:
                raise
            raise Failed(str(error).removeprefix(f"{node.name}: ")) from error

    if place in entries:
        raise Usage(f"Entry {place} can't move in front of itself: name another entry.")
    return _ask(app, _folder(app), ask)


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
    tell_others(app, folder, queue)
    return queue
