"""`gpuctl runs`: the runs there are."""

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.option("--all", "every", is_flag=True, help="List the runs of all clusters, also of removed ones.")
def command(app: App, every: bool) -> None:
    """List the cluster's runs; the latest is last."""
    from gpuctl.tables.lists import runs_table
    from gpuctl.workflow.runs.runs import no_runs
    from gpuctl.workflow.runs.unfinished_runs import overview

    runs = overview(app, None if every and not app.cluster_named else app.options.cluster)
    if not runs and app.cluster_named and not app.store.cluster(app.options.cluster).exists():
        raise no_runs(app)
    if app.options.json:
        app.output.json({"runs": runs})
    elif not runs:
        others = "" if every else " `gpuctl runs --all` lists those of other clusters."
        app.output.say(f"There are no runs yet. Start one: gpuctl train.{others if app.store.runs() else ''}")
    else:
        app.output.table(runs_table(runs))
