"""`why`: compare the activity of a run's ranks, asked of its nodes."""

import re
from dataclasses import replace

from gpuctl.app import App
from gpuctl.run_results.hangs.recorded import last_hang
from gpuctl.tables.view import open_view
from gpuctl.workflow.runs.on_hang import ask, keep_stacks, save_hang
from gpuctl.workflow.runs.runs import final_result, latest, machines_of
from inventories.runs.hang import Hang

_UNSERVED = re.compile(
    r"No available node types can fulfill resource requests? (?:defaultdict\(<class 'float'>, )?"
    r"(?P<request>\{[^}]*\})"
)
"""How Ray's scheduler writes a request that it cannot serve into a driver's log."""


def why(app: App, named: str | None) -> Hang:
    """Return why a run makes no progress; for a finished run, the hang found while it was active."""
    folder = latest(app, named)
    run, over = folder.load_run(), final_result(folder)
    if over is not None:
        from gpuctl.run_results.read_run import read_records

        hang = last_hang(read_records(folder, run))
        if hang is not None:
            keep_stacks(folder, hang)
            return hang
        why_ended = f": {over.first_error.message.removesuffix('.')}" if over.first_error else ""
        return Hang(
            run=over.run,
            verdict="unknown",
            sentence=f"The run is over, it {over.status}{why_ended}. Its ranks can no longer be asked.",
        )
    from remote.launchers import drives_itself
    from remote.runs.run_files import tail

    with open_view(app.output, logs=False) as view:
        view.phase("why", f"asking the ranks of run {folder.id}")
        hang = ask(run, machines_of(app.store, run), app.store.cluster(run.cluster)).hang
    if drives_itself(run.mode, built_in=run.built_in) and hang.ranks:
        driver = hang.ranks[0]
        if request := unserved_request(tail(folder, driver.rank)):
            place = f", at {driver.at}" if driver.at else ""
            sentence = (
                f"The run hangs: no machine of the cluster has what the script asks Ray for, {request}. The script "
                f"waits on {driver.node}{place}. Ask for less in @ray.remote or ScalingConfig, or add machines that "
                "have it."
            )
            hang = replace(hang, verdict="hung", sentence=sentence)
    save_hang(folder, hang)
    return hang


def unserved_request(log: str) -> str:
    """Return the resources that no node has, of a log that ends with Ray's word on them; empty: it ends otherwise."""
    lines = log.rstrip().splitlines()
    match = _UNSERVED.search(lines[-1]) if lines else None
    return match["request"] if match else ""
