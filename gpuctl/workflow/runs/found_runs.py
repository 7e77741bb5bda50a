"""Runs that another computer started: their records, from the nodes."""

from collections.abc import Sequence

from gpuctl.app import App
from gpuctl.workflow.machines.notify import note_targets
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine


def find_runs(app: App, folder: ClusterFolder, machines: Sequence[Machine]) -> list[str]:
    """Write the records of the cluster's runs that only its nodes know. Returns their ids, oldest first.

    Other commands then bring their logs and results. A node that does not answer is reported.
    """
    from remote.runs.run_records import unknown_runs
    from remote.sessions.connect import ask_each

    known = [run.id for run in app.store.runs()]
    outcomes = ask_each(lambda node: unknown_runs(node, folder.name, known), machines, folder)
    for outcome in outcomes:
        if outcome.error is not None:
            app.output.say(f"note: which runs it had is not known: {outcome.error}")
    runs = {run.run: run for outcome in outcomes for run in outcome.value or ()}
    for run in runs.values():
        app.store.make_run(run.run).save_run(run)
    note_targets(folder, ())  # runs of the other computer may have undelivered notices
    return sorted(runs)
