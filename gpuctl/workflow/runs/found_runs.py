"""Runs that another computer started: their records, from the nodes."""

from collections.abc import Sequence

from gpuctl.app import App
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from inventories.runs.run import Run


def find_runs(app: App, folder: ClusterFolder, machines: Sequence[Machine]) -> list[str]:
    """Write the records of the cluster's runs that only its nodes know. Returns their ids, oldest first.

    Other commands then bring their logs and results. A node that does not answer is reported.
    """
    from remote.fanout import fan_out
    from remote.runs.run_records import unknown_runs
    from remote.sessions.connect import connect

    known = [run.id for run in app.store.runs()]

    def ask(machine: Machine) -> list[Run]:
        with connect(machine, folder) as node:
            return unknown_runs(node, folder.name, known)

    outcomes = fan_out(ask, {machine.name: machine for machine in machines})
    for outcome in outcomes:
        if outcome.error is not None:
            app.output.say(f"note: which runs it had is not known: {outcome.error}")
    runs = {run.run: run for outcome in outcomes for run in outcome.value or ()}
    for run in runs.values():
        app.store.make_run(run.run).save_run(run)
    return sorted(runs)
