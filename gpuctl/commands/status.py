"""`gpuctl status`: machines, their real state, price and age."""

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.option("--all", "every", is_flag=True, help="Show all clusters with their machines.")
def command(app: App, every: bool) -> int:
    """Show the machines: real state, price, age and runs.

    The state is asked of the provider. A machine that was ended from outside is shown as gone; `gpuctl up`
    replaces it. For rented machines without a time limit it shows the cost of a day. `gpuctl clusters` has one
    line for each cluster.
    """
    from gpuctl.command_results.clusters import ClusterStatus, ClusterSummary
    from gpuctl.tables.lists import machines_table

    rows: list[ClusterStatus] | list[ClusterSummary]
    if every:
        from gpuctl.workflow.clusters.clusters import every_cluster

        rows = summaries = every_cluster(app)
        problem = any(cluster.problem for cluster in summaries)
    else:
        from gpuctl.library.cluster import Cluster

        rows, problem = [Cluster(app).status()], False
    if app.options.json:
        app.output.json({"clusters": rows} if every else rows[0])
    elif not rows:
        app.output.say("There is no cluster. Create one: gpuctl up --provider local --count 2")
    else:
        for cluster in rows:
            if cluster.machines is not None:
                app.output.table(machines_table(cluster))
    return 4 if problem else 0
