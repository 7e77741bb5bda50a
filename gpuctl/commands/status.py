"""`gpuctl status`: machines, their real state, price and age."""

import click

from gpuctl.options import App, common_options


@click.command()
@common_options
@click.option("--all", "every", is_flag=True, help="All clusters.")
def command(app: App, every: bool) -> None:
    """Show the machines, their real state as the provider tells it, price, age and runs.

    A machine that was ended from outside is shown as gone; `gpuctl up` replaces it.
    """
    from gpuctl.tables import machines_table
    from gpuctl.workflow.status import status_of

    folders = app.store.clusters() if every else [app.store.cluster(app.options.cluster)]
    documents = [status_of(app, folder) for folder in folders]
    if app.options.json:
        app.output.json({"clusters": documents} if every else documents[0])
        return
    if not documents:
        app.output.say("There is no cluster. Create one: gpuctl up --provider local --count 2")
    for document in documents:
        app.output.table(machines_table(document))
