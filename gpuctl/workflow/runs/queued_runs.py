"""Runs that a first node started from its queue: their records come here, so that every command knows them."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl.app import App
from inventories import codec
from inventories.disk import files
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from inventories.runs.queue import Queue
from inventories.runs.run import Run

if TYPE_CHECKING:
    from remote.sessions.session import Node

ASK_TIMEOUT_S = 5.0
"""For a connection by a command that is not about the queue."""


def mirrored(folder: ClusterFolder) -> Queue:
    """Return the queue as its node last reported it. Empty: it has none."""
    text = files.read_bytes(folder.queue_path)
    rebuild = "Remove the file; gpuctl queue ls writes it again."
    return Queue() if text is None else codec.load(Queue, text, str(folder.queue_path), rebuild=rebuild)


def first_machine(folder: ClusterFolder) -> Machine:
    """Return the machine that keeps the cluster's queue."""
    return min(folder.load().machines, key=lambda machine: machine.rank)


def keep_record(folder: ClusterFolder, run: Run) -> None:
    """Keep the record of a run that was put into the queue from here."""
    files.private_dir(folder.queued_path)
    files.write_atomic(_record_path(folder, run.run), codec.dump(run))


def _record_path(folder: ClusterFolder, run: str) -> Path:
    return folder.queued_path / f"{run}.json"


def take_in(app: App, folder: ClusterFolder, node: "Node", queue: Queue) -> None:
    """Save a queue that the node reported, with the records of its runs that have started since."""
    from remote.runs.run_records import unknown_runs

    started = {entry.run: entry.started_at for entry in queue.entries if entry.started_at}
    new = {run for run in started if not app.store.run_folder(run).run_path.exists()}
    recorded = {run for run in new if files.exists(_record_path(folder, run))}
    records = [codec.load(Run, _record_path(folder, run).read_bytes(), run) for run in sorted(recorded)]
    from_node = unknown_runs(node, folder.name, (), new - recorded) if new - recorded else []
    for record in (*records, *from_node):
        run = replace(record, started_at=started[record.run] or record.started_at)
        app.store.make_run(run.run).save_run(run)
    for entry in queue.entries:
        if entry.started_at or entry.ended:
            _record_path(folder, entry.run).unlink(missing_ok=True)
    files.write_atomic(folder.queue_path, codec.dump(queue))


def take_in_started(app: App, cluster: str | None) -> None:
    """Bring the records of runs that queues have started; only clusters whose queue has open entries are asked."""
    from remote.errors import RemoteError
    from remote.runs.queue import state_of
    from remote.sessions.connect import connect

    for folder in app.store.clusters() if cluster is None else [app.store.cluster(cluster)]:
        if folder.name in app.asked_queues or not folder.exists():
            continue
        if not open_entries(folder):
            continue
        app.asked_queues.add(folder.name)
        try:
            with connect(first_machine(folder), folder, timeout_s=ASK_TIMEOUT_S) as node:
                take_in(app, folder, node, state_of(node))
        except RemoteError as error:
            app.output.say(f"note: whether the queue has started further runs is not known: {error}")


def tell_others(app: App, folder: ClusterFolder, queue: Queue) -> None:
    """Have the other machines follow the queue, should their process be missing, and forget runs that left it."""
    from remote.fanout import fan_out
    from remote.runs.queue import follow
    from remote.sessions.connect import connect

    if all(entry.nnodes == 1 for entry in queue.entries):
        return
    first = first_machine(folder)
    runs = [entry.run for entry in queue.entries if not entry.ended]

    def tell(machine: Machine) -> None:
        with connect(machine, folder, timeout_s=ASK_TIMEOUT_S) as node:
            follow(node, runs)

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
    try:
        with connect(first_machine(folder), folder, timeout_s=ASK_TIMEOUT_S) as node:
            queue = change(node, "clear")
            take_in(app, folder, node, queue)
        tell_others(app, folder, queue)
    except RemoteError as error:
        app.output.say(f"note: the queue may start further runs: {error}")


def open_entries(folder: ClusterFolder) -> int:
    """Return the number of entries that wait or run, as the first node last reported them."""
    return sum(not entry.ended for entry in mirrored(folder).entries)


def queue_of(folder: ClusterFolder, first: "Node | None") -> Queue:
    """Return the queue as its node reports it. `first`: `None` if it does not answer: as it last did."""
    from remote.runs.queue import state_of

    return mirrored(folder) if first is None else state_of(first)


def entries_on(folder: ClusterFolder, queue: Queue, names: Collection[str]) -> list[str]:
    """Return the entries that have not started, and have a part on one of these machines.

    An entry of another computer counts: its machines are not known here.
    """
    waiting = [entry for entry in queue.entries if not entry.ended and entry.state != "running"]
    return [entry.entry for entry in waiting if _may_use(_record_path(folder, entry.run), names)]


def _may_use(record: Path, names: Collection[str]) -> bool:
    text = files.read_bytes(record)
    return text is None or any(node.name in names for node in codec.load(Run, text, str(record)).nodes)
