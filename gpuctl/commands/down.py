"""`gpuctl down`: this cluster to nothing."""

import click

from gpuctl.options import App, common_options


@click.command()
@common_options
@click.option(
    "--forget",
    is_flag=True,
    help="Machines that you brought: forget also those whose firewall can't be restored, and say which.",
)
def command(app: App, forget: bool) -> int:
    """Remove everything of the cluster. Nothing to remove is success, too.

    A run that is going on is stopped first; that is asked about, or needs --yes. Results stay. Machines that you
    brought (provider hosts) are not touched but for our rules in their firewalls, which go; what gpuctl has left on
    their disks is told, and on a terminal offered to be removed.
    """
    from gpuctl.workflow.cluster.down import down

    document = down(app, forget=forget)
    if app.options.json:
        app.output.json(document)
    return 4 if document["leftovers"] else 0
