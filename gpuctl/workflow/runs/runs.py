"""Find the runs that a command is about, and what this computer knows of them. No machine is asked."""

from collections.abc import Mapping
from contextlib import suppress

from gpuctl.app import App
from gpuctl.workflow.machines.connect import unknown_cluster
from gpuctl.workflow.runs.queued_runs import take_in_started
from inventories.disk.store import RunFolder, Store
from inventories.errors import InventoryError, NotFound
from inventories.machine import Machine
from inventories.runs.labels import LATEST
from inventories.runs.result import Result
from inventories.runs.run import Run

MAX_BESIDE = 20
"""Latest runs among which active ones are looked for."""


def latest(app: App, named: str | None) -> RunFolder:
    """Return the run of that name or id (an id's beginning or end is enough), or the cluster's latest.

    Prints which run that is if other runs may still be active.
    """
    take_in_started(app, app.options.cluster)
    if named is not None and named != LATEST:
        return app.store.run(named, app.options.cluster)
    folder = newest(app)
    if active := active_beside(app, folder):
        app.output.say(
            f"note: {folder.id} is the latest run. {', '.join(other.id for other in active)} may still be "
            "active: gpuctl runs"
        )
    return folder


def newest(app: App) -> RunFolder:
    """Return the cluster's latest run whose record can be read. Raises NotFound."""
    for folder in reversed(app.store.runs(app.options.cluster)):
        try:
            folder.load_run()
        except InventoryError as error:  # a broken record may be of any cluster
            app.output.say(f"note: run {folder.id} is skipped: {error}")
        else:
            return folder
    raise no_runs(app)


def active_beside(app: App, run: RunFolder) -> list[RunFolder]:
    """Return the other runs of the cluster, among the latest, that may still be active."""
    latest_runs = app.store.runs(app.options.cluster)[-MAX_BESIDE:]
    return [other for other in latest_runs if other.id != run.id and _may_be_active(app, other)]


def no_runs(app: App) -> NotFound:
    """Return the error for a cluster without runs, or for a name that no cluster has."""
    folder = app.store.cluster(app.options.cluster)
    if not folder.exists():
        of_runs = set()
        for run in app.store.runs():
            with suppress(InventoryError):
                of_runs.add(run.load_run().cluster)
        return unknown_cluster(folder, of_runs=of_runs)
    return NotFound(f"The cluster {folder.name} has no runs yet. Start one: gpuctl train")


def _may_be_active(app: App, folder: RunFolder) -> bool:
    """Return whether a run has no known end, and its cluster still has one of its machines."""
    with suppress(InventoryError):
        return final_result(folder) is None and bool(machines_of(app.store, folder.load_run()))
    return False


def final_result(folder: RunFolder) -> Result | None:
    """Return the result once every node has reported the end, and all files are here; else `None`."""
    from remote.runs.run_files import read_node_records

    result = folder.load_result()
    if result is None:
        return None
    nodes = folder.load_run().nodes
    return result if len(read_node_records(folder, nodes)) == len(nodes) else None


def machines_of(store: Store, run: Run) -> Mapping[str, Machine]:
    """Return the run's machines that the cluster still has, by name. Another host key or pod is another machine."""
    cluster = store.cluster(run.cluster)
    if not cluster.exists():
        return {}
    parts = {part.name: part for part in run.nodes}
    return {
        machine.name: machine
        for machine in cluster.load().machines
        if (part := parts.get(machine.name)) is not None
        and part.host_key in (None, machine.host_key)
        and part.machine_id in (None, machine.id)
    }
