"""`gpuctl stop`: end a run on every node."""

import click

from gpuctl import completions
from gpuctl.options import App, common_options


@click.command()
@common_options
@click.argument("run", required=False, shell_complete=completions.runs)
def command(app: App, run: str | None) -> int:
    """Stop a run on every node and bring its results back (default: the latest run)."""
    from gpuctl.workflow.cluster.run_machines import end_idle_machines
    from gpuctl.workflow.training.stop import stop

    result, errors = stop(app, run)
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
