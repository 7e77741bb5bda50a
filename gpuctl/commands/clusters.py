"""`gpuctl clusters`: every cluster, its real state, what it costs, what runs there."""

import click

from gpuctl.app import App
from gpuctl.command_line.options import every_cluster_options


@click.command()
@every_cluster_options
def command(app: App) -> int:
    """List every cluster of this computer: real state, machines, price, cost so far, age and runs.

    \b
    gpuctl clusters                 all of them, what costs most first
    gpuctl clusters --json          the same for a program; `problem` says why a state is not known
    gpuctl status --cluster NAME    the machines of one
    gpuctl reap --dry-run           what is in your cloud accounts, also without the files of this computer

    It asks every provider. If one can't be asked, the state is shown as unknown with the reason, and the exit status
    is 4. Rented machines without a time limit are marked: only `gpuctl down` ends them.
    """
    from gpuctl.tables.clusters import clusters_table
    from gpuctl.workflow.clusters.clusters import every_cluster, totals

    found = every_cluster(app)
    if app.options.json:
        app.output.json({"clusters": found})
    elif not found:
        app.output.say("There is no cluster. Create one: gpuctl up --provider local --count 2")
    else:
        app.output.table(clusters_table(found, totals(found)))
    return 4 if any(cluster.problem for cluster in found) else 0
