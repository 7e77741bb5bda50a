"""Find the runs of `runs` and `results`, and their results."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from gpuctl.app import App
from gpuctl.json_documents import RunInfo
from gpuctl.tables.view import open_view
from gpuctl.workflow.machines.connect import unknown_cluster
from gpuctl.workflow.runs.collect import attach, final_result, machines_of
from gpuctl.workflow.runs.unfinished_runs import open_runs
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError, NotFound
from inventories.runs.run import Result, RunStatus

MAX_BESIDE = 20
"""Latest runs among which active ones are looked for."""


def latest(app: App, named: str | None) -> RunFolder:
    """Return the run of that name (its beginning or end is enough), or the cluster's latest.

    Prints which run that is if other runs may still be active.
    """
    if named is not None:
        return app.store.run(named)
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
        if _readable(app, folder):
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


def _readable(app: App, folder: RunFolder) -> bool:
    """Return whether the run's record can be read: a broken record may be of any cluster."""
    try:
        folder.load_run()
    except InventoryError as error:
        app.output.say(f"note: run {folder.id} is skipped: {error}")
        return False
    return True


def overview(app: App, cluster: str | None) -> list[RunInfo]:
    """Return the runs of a cluster, or of all clusters. Results of runs that have ended are downloaded first."""
    open_runs(app, cluster)
    return [_row(folder) for folder in app.store.runs(cluster)]


def _row(folder: RunFolder) -> RunInfo:
    run = result = None
    status: RunStatus | Literal["unreadable"] = "unreadable"
    with suppress(InventoryError):
        run = folder.load_run()
        result = folder.load_result()
        status = result.status if result else "running"
    return RunInfo(
        run=folder.id,
        cluster=run.cluster if run else None,
        mode=run.mode if run else None,
        script=run.script if run else None,
        args=run.args if run else (),
        status=status,
        world_size=run.world_size if run else None,
        started_at=run.started_at if run else None,
        seconds=result.seconds.total if result else None,
        accuracy=result.train.accuracy if result else None,
        cost_usd=result.cost_usd if result else None,
    )


def results_of(app: App, named: Sequence[str]) -> list[Result]:
    """Return the results of the named runs, or of the latest run. The nodes of a run without an end are asked."""
    folders = [latest(app, name) for name in named] or [latest(app, None)]
    results = []
    for folder in folders:
        known = final_result(folder)
        if known is None:
            with open_view(app.output, logs=False) as view:
                view.phase("collect", f"asking the nodes of run {folder.id}")
                known = attach(app.store, folder, view, wait=False)
        results.append(known)
    return results
