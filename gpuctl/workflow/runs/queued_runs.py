"""Runs that a first node started from its queue: their records come here, so that every command knows them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.scripts.arguments import typed_line
from gpuctl.text import shorten
from inventories import codec
from inventories.disk import files
from inventories.disk.store import ClusterFolder
from inventories.errors import CorruptFile, InventoryError, NewerFormat
from inventories.machine import Machine
from inventories.runs.queue import Queue, QueuedRun, QueueEntry
from inventories.runs.run import Run
from inventories.text import listed

if TYPE_CHECKING:
    from remote.sessions.session import Node

COMMAND_SHOWN = 60
"""Length of an entry's command in a sentence."""
UNREADABLE = (CorruptFile, NewerFormat)
ASK_TIMEOUT_S = 5.0
"""For a connection by a command that is not about the queue."""


def mirrored(folder: ClusterFolder) -> Queue:
    """Return the queue as its node last reported it. Empty: it has none, or the file can't be read."""
    try:
        return _read_mirror(folder)
    except UNREADABLE:  # a copy, which the node's next answer replaces
        return Queue()


def _read_mirror(folder: ClusterFolder) -> Queue:
    text = files.read_bytes(folder.queue_path)
    return Queue() if text is None else codec.load(Queue, text, str(folder.queue_path))


def first_machine(folder: ClusterFolder) -> Machine:
    """Return the machine that keeps the cluster's queue."""
    return min(folder.load().machines, key=lambda machine: machine.rank)


def keep_records(folder: ClusterFolder, records: Sequence[Run]) -> None:
    """Keep the records of a run that was put into the queue from here, one for each place where it may start."""
    files.private_dir(folder.queued_path)
    files.write_atomic(_record_path(folder, records[0].run), codec.dump(QueuedRun(records=tuple(records))))


def _queued(folder: ClusterFolder, run: str) -> QueuedRun | None:
    """Return a run that was queued from here. `None`: it was not, it has started, or the file can't be read."""
    path = _record_path(folder, run)
    text = files.read_bytes(path)
    try:
        return None if text is None else codec.load(QueuedRun, text, str(path))
    except UNREADABLE:  # its node has the record, too
        return None


def _record_path(folder: ClusterFolder, run: str) -> Path:
    return folder.queued_path / f"{run}.json"


def take_in(app: App, folder: ClusterFolder, node: "Node", queue: Queue, before: Queue | None = None) -> None:
    """Save a queue that the node reported, with the records of its runs that have started since.

    If the queue had stopped, or the node is another machine than the one that had its entries, it says so.
    `before`: the queue as it is saved here. `None`: it is read.
    """
    from remote.errors import RemoteError

    if lost := lost_entries(before or mirrored(folder), queue):
        app.output.say(
            f"note: {_entries_shown(lost)} of the queue will not run: {node.name} is another machine than the one "
            "that had the queue. Add again what is missing: gpuctl queue add"
        )
        for entry in lost:
            _record_path(folder, entry.run).unlink(missing_ok=True)
    if queue.restarted:
        app.output.say(
            f"note: the queue had stopped, as its process on {node.name} had ended: it continues now"
        )
    elsewhere: dict[str, list[QueueEntry]] = {}
    for entry in queue.entries:
        if not entry.started_at or app.store.run_folder(entry.run).run_path.exists():
            continue
        queued = _queued(folder, entry.run)
        if queued is not None and (record := queued.on(entry.nodes)) is not None:
            _save(app, record, entry)
        else:
            elsewhere.setdefault(entry.nodes[0], []).append(entry)
    for name, entries in elsewhere.items():
        by_run = {entry.run: entry for entry in entries}
        try:
            for record in _records_on(folder, node, name, by_run):
                _save(app, record, by_run[record.run])
        except RemoteError as error:  # the queue's node has answered: the queue is known
            app.output.say(f"note: no record of {_entries_shown(entries)} is here yet: {error}")
    for entry in queue.entries:
        if entry.started_at or entry.ended:
            _record_path(folder, entry.run).unlink(missing_ok=True)
    files.write_atomic(folder.queue_path, codec.dump(queue))


def _save(app: App, record: Run, entry: QueueEntry) -> None:
    app.store.make_run(record.run).save_run(replace(record, started_at=entry.started_at or record.started_at))


def _records_on(folder: ClusterFolder, first: "Node", name: str, runs: Collection[str]) -> Sequence[Run]:
    """Return the records of runs that another computer queued, from the node of that name."""
    from remote.runs.run_records import unknown_runs
    from remote.sessions.connect import connect

    if name == first.name:
        return unknown_runs(first, folder.name, (), runs)
    machine = next((machine for machine in folder.load().machines if machine.name == name), None)
    if machine is None:
        return ()
    with connect(machine, folder, timeout_s=ASK_TIMEOUT_S) as node:
        return unknown_runs(node, folder.name, (), runs)


def take_in_started(app: App, cluster: str | None, *, always: bool = False) -> None:
    """Bring the records of runs that queues have started.

    A queue is asked if it had open entries when its node last answered, or if that answer can't be read. `always`:
    also otherwise, as another computer may have added entries.
    """
    from remote.errors import RemoteError
    from remote.runs.queue import state_of
    from remote.sessions.connect import connect

    for folder in app.store.clusters() if cluster is None else [app.store.cluster(cluster)]:
        if folder.name in app.asked_queues or not folder.exists():
            continue
        try:
            known = _read_mirror(folder).open_entries
            if not (always or known):
                continue
        except UNREADABLE as error:
            app.output.say(f"note: {error} The queue's node is asked.")
        app.asked_queues.add(folder.name)
        try:
            with connect(first_machine(folder), folder, timeout_s=ASK_TIMEOUT_S) as node:
                take_in(app, folder, node, state_of(node))
        except (RemoteError, InventoryError) as error:
            app.output.say(f"note: whether the queue has started further runs is not known: {error}")


def tell_others(app: App, folder: ClusterFolder, queue: Queue, *, keep_new: bool = True) -> None:
    """Have the other machines follow the queue, should their process be missing, and forget runs that left it.

    `keep_new`: runs that another computer may be adding now stay.
    """
    from remote.fanout import fan_out
    from remote.runs.queue import follow
    from remote.sessions.connect import connect

    if len(folder.load().machines) == 1:
        return
    first = first_machine(folder)
    runs = [entry.run for entry in queue.open_entries]

    def tell(machine: Machine) -> None:
        with connect(machine, folder, timeout_s=ASK_TIMEOUT_S) as node:
            follow(node, runs, keep_new=keep_new)

    machines = {machine.name: machine for machine in folder.load().machines if machine.name != first.name}
    for outcome in fan_out(tell, machines):
        if outcome.error is not None:
            app.output.say(f"note: {outcome.node} does not follow the queue: {outcome.error}")


def clear(app: App, folder: ClusterFolder) -> None:
    """Remove all entries that wait, so that nothing starts when the active run is stopped."""
    from remote.errors import RemoteError
    from remote.runs.queue import change
    from remote.sessions.connect import connect

    if not open_entries(folder):
        return
    waiting = waiting_in_queue(folder)
    try:
        with connect(first_machine(folder), folder, timeout_s=ASK_TIMEOUT_S) as node:
            queue = change(node, "clear")
            take_in(app, folder, node, queue)
        tell_others(app, folder, queue, keep_new=False)
        if waiting:
            app.output.say(f"removed {waiting}")
    except (RemoteError, InventoryError) as error:
        app.output.say(f"note: the queue may start further runs: {error}")


def open_entries(folder: ClusterFolder) -> list[QueueEntry]:
    """Return the entries that wait or run, as the first node last reported them."""
    return mirrored(folder).open_entries


def with_added(before: Queue, added: Queue) -> Queue:
    """Return the queue after an addition: the added entries alone if their node does not have the earlier ones."""
    runs = {entry.entry: entry.run for entry in before.entries}
    if any(runs.get(entry.entry, entry.run) != entry.run for entry in added.entries):
        return added
    known = {entry.run: entry for entry in (*before.entries, *added.entries)}
    return replace(added, entries=tuple(known.values()))


def lost_entries(before: Queue, now: Queue) -> list[QueueEntry]:
    """Return the open entries of a queue that another node has reported, one that does not have them."""
    numbers, runs = {entry.entry: entry.run for entry in now.entries}, {entry.run for entry in now.entries}
    known = [entry for entry in before.entries if entry.run in runs]
    if known and all(numbers.get(entry.entry, entry.run) == entry.run for entry in before.entries):
        return []  # an older report of the same node: a command beside this one has added entries since
    return [entry for entry in before.open_entries if entry.run not in runs]


def waiting_in_queue(folder: ClusterFolder) -> str:
    """Return `entry 3 (train.py --lr 0.1)` for each entry that waits, shortened. Empty: no entry waits."""
    waiting = mirrored(folder).waiting
    return f"{_entries_shown(waiting)} of the queue" if waiting else ""


def _entries_shown(entries: Sequence[QueueEntry]) -> str:
    shown = [
        f"{entry.entry} ({shorten(typed_line(entry.script, entry.args), COMMAND_SHOWN)})" for entry in entries
    ]
    return f"{'entry' if len(entries) == 1 else 'entries'} {listed(shown)}"


def queue_of(folder: ClusterFolder, first: "Node | None") -> Queue:
    """Return the queue as its node reports it. `first`: `None` if it does not answer: as it last did."""
    from remote.runs.queue import state_of

    return mirrored(folder) if first is None else state_of(first)


def entries_on(folder: ClusterFolder, queue: Queue, names: Collection[str]) -> list[str]:
    """Return the entries that have not started, and can't start without one of these machines.

    An entry of another computer counts: its machines are not known here.
    """
    queued = {entry.entry: _queued(folder, entry.run) for entry in queue.waiting}
    return [name for name, run in queued.items() if run is None or run.needs(names)]
