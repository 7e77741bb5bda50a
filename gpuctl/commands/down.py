"""`gpuctl down`: this cluster to nothing."""

import click

from gpuctl.options import App, common_options


@click.command()
@common_options
def command(app: App) -> int:
    """Remove everything of the cluster. Nothing to remove is success, too.

    A run that is going on is stopped first; that is asked about, or needs --yes. Results stay.
    """
    from gpuctl.workflow.down import down

    document = down(app)
    if app.options.json:
        app.output.json(document)
    return 4 if document["leftovers"] else 0
