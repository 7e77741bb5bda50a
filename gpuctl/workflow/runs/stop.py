"""`stop`: end a run on every node and bring its results back."""

from threading import Lock

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.tables.view import open_view
from gpuctl.workflow.runs.collect import attach
from gpuctl.workflow.runs.runs import active_beside, final_result, latest, machines_of, newest
from gpuctl.workflow.runs.unfinished_runs import open_runs
from inventories.disk.store import RunFolder
from inventories.runs.result import Result


def stop(
    app: App, named: str | None, grace_s: float | None = None, *, interrupted: bool = False
) -> tuple[Result, list[str]]:
    """End the run. Returns its result, and a sentence for each node that did not get the order.

    `interrupted`: ranks get SIGINT, else SIGTERM. Without a name, the only active run, or the latest if no run is
    active. Raises Usage if several are.
    """
    folder = latest(app, named) if named is not None else _only_active(app)
    return stop_run(app, folder, grace_s, interrupted=interrupted)


def _only_active(app: App) -> RunFolder:
    latest = newest(app)
    if not active_beside(app, latest):
        return latest
    active = [run.folder for run in open_runs(app, app.options.cluster) if run.active or run.id == latest.id]
    if len(active) > 1:
        raise Usage(
            f"Several runs may be active: {', '.join(folder.id for folder in active)}. No run was stopped. Name the "
            f"run to stop, such as: gpuctl stop {active[-1].id}"
        )
    if active and active[0].id != latest.id:
        app.output.say(f"note: {latest.id}, the latest run, has ended. The active run is {active[0].id}")
    return active[0] if active else latest


def stop_run(
    app: App, folder: RunFolder, grace_s: float | None = None, *, interrupted: bool = False
) -> tuple[Result, list[str]]:
    """End this run; a finished run is left as it is.

    `grace_s`: seconds from the signal to SIGKILL. `None`: as set at its launch.
    """
    from remote.end_sentences import seconds_text
    from remote.runs.node_state import stop_everywhere

    # Before the nodes know, and also where it is over: whoever follows the run is not to start another.
    folder.stopped_path.touch(mode=0o600)
    known = final_result(folder)
    if known is not None:
        return known, []
    run = folder.load_run()
    machines, cluster = machines_of(app.store, run), app.store.cluster(run.cluster)
    longest = seconds_text(run.stop_grace_s if grace_s is None else grace_s)
    lock, printed = Lock(), False
    with open_view(app.output, logs=False) as view:

        def on_running() -> None:
            nonlocal printed
            with lock:
                if not printed:
                    printed = True
                    view.phase("stop", f"stopping run {run.run}: ranks are given up to {longest} to save")

        errors = stop_everywhere(
            run, machines, cluster, grace_s, interrupted=interrupted, on_running=on_running
        )
        result = attach(app.store, folder, view, wait=False)
    return result, [str(error) for error in errors.values() if error is not None]
