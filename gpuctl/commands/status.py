"""`gpuctl status`: machines, their real state, price and age."""

import click

from gpuctl.options import App, common_options


@click.command()
@common_options
@click.option("--all", "every", is_flag=True, help="Show all clusters with their machines.")
def command(app: App, every: bool) -> int:
    """Show the machines: real state, price, age and runs.

    The state is asked of the provider. A machine that was ended from outside is shown as gone; `gpuctl up`
    replaces it. For rented machines without a time limit it shows the cost of a day. `gpuctl clusters` has one
    line for each cluster.
    """
    from gpuctl.tables.lists import machines_table

    if every:
        from gpuctl.workflow.cluster.clusters import every_cluster

        documents = every_cluster(app)
    else:
        from gpuctl.workflow.cluster.status import status_of

        documents = [status_of(app, app.store.cluster(app.options.cluster))]
    if app.options.json:
        app.output.json({"clusters": documents} if every else documents[0])
    elif not documents:
        app.output.say("There is no cluster. Create one: gpuctl up --provider local --count 2")
    else:
        for document in documents:
            if document["machines"] is not None:
                app.output.table(machines_table(document))
    return 4 if any(document.get("problem") for document in documents) else 0
