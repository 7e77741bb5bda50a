"""`runs` and `results`: what was run, and what came of it."""

from typing import Any

from gpuctl.options import App
from gpuctl.view import open_view
from gpuctl.workflow.collect import attach, final_result
from inventories.errors import InventoryError, NotFound
from inventories.run import Result
from inventories.store import RunFolder, Store


def latest(app: App, named: str | None) -> RunFolder:
    """The run of that name (its first letters are enough), or the cluster's latest."""
    if named is not None:
        return app.store.run(named)
    folders = app.store.runs(app.options.cluster)
    if not folders:
        raise NotFound(f"The cluster {app.options.cluster} has no runs yet. Start one: gpuctl train")
    return folders[-1]


def overview(store: Store, cluster: str | None) -> list[dict[str, Any]]:
    """A row a run from what is on this computer; no node is asked."""
    return [_row(folder) for folder in store.runs(cluster)]


def _row(folder: RunFolder) -> dict[str, Any]:
    run, result, unreadable = folder.load_run(), None, False
    try:
        result = folder.load_result()
    except InventoryError:
        unreadable = True
    return {
        "run": run.run,
        "cluster": run.cluster,
        "mode": run.mode,
        "script": run.script,
        "args": list(run.args),
        "status": "unreadable" if unreadable else result.status if result else "running",
        "world_size": run.world_size,
        "started_at": run.started_at,
        "seconds": result.seconds.total if result else None,
        "accuracy": result.train.accuracy if result else None,
        "cost_usd": result.cost_usd if result else None,
    }


def results_of(app: App, named: tuple[str, ...]) -> list[Result]:
    """The results of the runs named, or of the latest; one that is not over is brought up to date first."""
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
