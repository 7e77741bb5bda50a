"""`gpuctl stop`: end a run on every node."""

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options
from inventories.specs.checks import check_stop_grace_s


@click.command()
@common_options
@click.option(
    "--stop-grace",
    metavar="TIME",
    help="Give the ranks this long to save before they are killed, such as 5m; 0s kills them at once (default: as "
    "`gpuctl train` set it, 30s).",
)
@click.option(
    "--signal",
    "signal_name",
    type=click.Choice(("term", "int")),
    default="term",
    help="The signal that the ranks get: SIGTERM, or SIGINT as from Ctrl-C, for a script that saves on "
    "KeyboardInterrupt (default: term).",
)
@click.argument("run", required=False, shell_complete=completions.runs)
def command(app: App, stop_grace: str | None, signal_name: str, run: str | None) -> int:
    """Stop a run on every node and bring its results back (default: the only active run).

    If several runs are active, it names them and stops none. SIGTERM ends a Python script without an exception,
    unless the script handles it; --signal int raises KeyboardInterrupt in it.
    """
    from gpuctl.workflow.jobs.scale_for_run import end_idle_machines
    from gpuctl.workflow.runs.stop import stop

    grace_s = None if stop_grace is None else check_stop_grace_s(stop_grace)
    result, errors = stop(app, run, grace_s, interrupted=signal_name == "int")
    if app.options.json:
        app.output.json(result)
    else:
        over = "may still be active" if result.status == "running" else f"is over: {result.status}"
        app.output.say(f"run {result.run} {over}")
    for error in errors:
        app.output.error(error)
    if result.status != "running":
        end_idle_machines(app, "stop", app.store.cluster(result.cluster))
    return 4 if errors or result.status == "running" else 0
