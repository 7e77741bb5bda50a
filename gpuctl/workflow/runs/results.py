"""Choose the runs that `results` and `report` show, and collect their results."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.option_table.queue_options import SWEEP_TAG
from gpuctl.run_results.best import best_of, best_sentence
from gpuctl.tables.view import open_view
from gpuctl.workflow.runs.collect import attach
from gpuctl.workflow.runs.runs import final_result, latest, newest
from gpuctl.workflow.runs.unfinished_runs import open_runs
from inventories.disk.store import RunFolder
from inventories.errors import InventoryError, NotFound
from inventories.runs.labels import BEST
from inventories.runs.result import Result
from inventories.runs.run import RunOptions
from inventories.specs.spec import DEFAULT_CLUSTER


def results_of(
    app: App, named: Sequence[str], *, last: int | None = None, tags: Mapping[str, str] | None = None
) -> list[Result]:
    """Return the results of runs; the nodes of a run without an end are asked.

    `named`: names or ids of runs, `latest` and `best`. Empty: the `last` of the cluster's runs that have all of
    `tags`; without either, the latest. `best` is the best of these runs; without either, of the latest run's script.
    A run that is named twice counts once. Raises Usage, and NotFound without such a run.
    """
    results = []
    for folder in _chosen(app, named, last, tags or {}):
        known = final_result(folder)
        if known is None:
            with open_view(app.output, logs=False) as view:
                view.phase("collect", f"asking the nodes of run {folder.id}")
                known = attach(app.store, folder, view, wait=False)
        results.append(known)
    return results


def sweep_sentence(app: App, result: Result) -> str:
    """Return the sentence on the sweep of which a run is one. Empty: no other run has its tag."""
    if SWEEP_TAG not in result.tags:
        return ""
    tag = {SWEEP_TAG: result.tags[SWEEP_TAG]}
    count = len(_tagged(app, result.cluster, tag))
    cluster = "" if result.cluster == DEFAULT_CLUSTER else f" --cluster {result.cluster}"
    words = shlex.join(["--tag", f"{SWEEP_TAG}={tag[SWEEP_TAG]}"])
    return f"one of {count} runs of a sweep: gpuctl results{cluster} {words}" if count > 1 else ""


def _chosen(app: App, named: Sequence[str], last: int | None, tags: Mapping[str, str]) -> list[RunFolder]:
    selects = last is not None or bool(tags)
    if selects and (runs := [word for word in named if word != BEST]):
        raise Usage(f"--last and --tag choose among all runs: leave them out, or leave out {' '.join(runs)}.")
    if named or not selects:
        folders = [_best(app, last, tags) if word == BEST else latest(app, word) for word in named or (None,)]
        return list({folder.id: folder for folder in folders}.values())
    return _selected(app, last, tags)


def _selected(app: App, last: int | None, tags: Mapping[str, str]) -> list[RunFolder]:
    """Return the cluster's runs that have all tags, of these the last ones, oldest first. Raises NotFound."""
    newest(app)  # raises for a cluster without runs
    folders = _tagged(app, app.options.cluster, tags)
    if not folders:
        missing = " ".join(f"{name}={value}" for name, value in tags.items())
        raise NotFound(
            f"No run of the cluster {app.options.cluster} has the tag {missing}. `gpuctl runs --json` lists the tags."
        )
    return folders if last is None else folders[-last:]


def _tagged(app: App, cluster: str, tags: Mapping[str, str]) -> list[RunFolder]:
    """Return a cluster's runs that have all tags, oldest first."""
    folders = []
    for folder in app.store.runs(cluster):
        with suppress(InventoryError):
            options = folder.load_run().options or RunOptions()
            if tags.items() <= options.tags.items():
                folders.append(folder)
    return folders


def _best(app: App, last: int | None, tags: Mapping[str, str]) -> RunFolder:
    """Return the best of the selected runs, or of the runs of the latest run's script. Raises NotFound."""
    open_runs(app, app.options.cluster)  # brings the results of runs that have ended since
    script = None if last is not None or tags else newest(app).load_run().script
    results = []
    for folder in _selected(app, last, tags):
        with suppress(InventoryError):
            result = folder.load_result()
            if result is not None and script in (None, result.script):
                results.append(result)
    best = best_of(results)
    if best is None:
        of = f" of {script}" if script else ""
        raise NotFound(f"No run{of} that succeeded has an accuracy or a loss, so none is the best.")
    app.output.say(best_sentence(best, results))
    return app.store.run(best.result.run)
