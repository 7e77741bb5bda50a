"""`stop`: end a run on every node and bring its results back."""

from gpuctl.options import App
from gpuctl.view import open_view
from gpuctl.workflow.training.collect import attach, final_result, machines_of
from gpuctl.workflow.training.runs import latest
from inventories.disk.store import RunFolder
from inventories.run import Result


def stop(app: App, named: str | None, grace_s: float | None = None) -> tuple[Result, list[str]]:
    """End the run. Returns its result, and a sentence for each node that could not be told to stop."""
    return stop_run(app, latest(app, named), grace_s)


def stop_run(app: App, folder: RunFolder, grace_s: float | None = None) -> tuple[Result, list[str]]:
    """End this run; one that is over is left as it is.

    `grace_s`: seconds from SIGTERM to SIGKILL. None: those that its launch set.
    """
    from remote.ending_sentences import seconds_text
    from remote.runs.node_state import stop_everywhere

    # Before the nodes know, and also where it is over: whoever follows the run is not to start another.
    folder.stopped_path.touch(mode=0o600)
    known = final_result(folder)
    if known is not None:
        return known, []
    run = folder.load_run()
    machines, cluster = machines_of(app.store, run), app.store.cluster(run.cluster)
    with open_view(app.output, logs=False) as view:
        most = seconds_text(run.stop_grace_s if grace_s is None else grace_s)
        view.phase("stop", f"stopping run {run.run}: ranks are given up to {most} to save")
        errors = stop_everywhere(run, machines, cluster, grace_s)
        result = attach(app.store, folder, view, wait=False)
    return result, [str(error) for error in errors.values() if error is not None]
