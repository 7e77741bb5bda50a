"""`keep`: unused machines of a cluster with `--idle` stay for a time."""

from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.command_results.clusters import IdleStatus
from gpuctl.errors import Usage
from gpuctl.workflow.machines.connect import load_inventory
from gpuctl.workflow.machines.idle import ask_machines, idle_s_of, idle_status, running


def keep(app: App, keep_s: float) -> tuple[IdleStatus, tuple[str, ...]]:
    """Put the end of unused machines off. Returns the cluster's state, and the problems of machines.

    Raises Usage for a cluster without `--idle`.
    """
    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    after_s = idle_s_of(folder, inventory.provider)
    if after_s is None:
        raise Usage(f"The cluster {folder.name} does not end when it is unused: it was made without --idle.")
    answers = ask_machines(folder, running(inventory.machines), keep_s)
    problems = [str(outcome.error) for outcome in answers if outcome.error is not None]
    problems += [
        f"{outcome.node}: the watch for use does not run, so nothing ends the machine."
        for outcome in answers
        if outcome.value is not None and not outcome.value.running
    ]
    return idle_status(after_s, answers, datetime.now(UTC)), tuple(problems)
