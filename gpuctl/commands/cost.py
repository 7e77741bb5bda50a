"""`gpuctl cost`: the money of clusters and runs."""

from datetime import UTC, datetime

import click

from gpuctl.app import App
from gpuctl.command_line.options import no_cluster_options


@click.command()
@no_cluster_options
@click.option(
    "--since", metavar="DAY|TIME", help="From this day on, such as 2026-11-01, or for this long, such as 7d."
)
def command(app: App, since: str | None) -> int:
    """Show what clusters cost by list price, with their runs, and the cost of each day (default: this month).

    \b
    gpuctl cost                       this calendar month
    gpuctl cost --since 2026-11-01    from a day on
    gpuctl cost --since 7d --json     the last seven days, for a program

    It asks the clouds which clusters exist, in every region, and knows removed ones by ledger.jsonl under
    $GPUCTL_HOME. So clusters that another computer made and removed are missing. Unknown prices and ends are named;
    if a place does not answer, the exit status is 4. Days and months are UTC.
    """
    from gpuctl.workflow.clusters.cost import cost_of_clusters, since_of

    result = cost_of_clusters(app, since_of(since, datetime.now(UTC)))
    if app.options.json:
        app.output.json(result)
    else:
        from gpuctl.tables.cost import cost_table

        app.output.table(cost_table(result))
    for place in result.unknown:
        app.output.error(f"not asked: {place}")
    return 4 if result.unknown else 0
