"""`gpuctl down`: this cluster to nothing."""

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.option(
    "--forget",
    is_flag=True,
    help="Machines that you have: remove the cluster even if gpuctl's firewall rules can't be removed from some of "
    "them, and name those. Pods: forget a Kubernetes cluster that is gone.",
)
def command(app: App, forget: bool) -> int:
    """Remove everything of the cluster. Succeeds if there is nothing to remove.

    An active run is stopped first: `down` asks, or needs --yes. Results stay. On machines that you have (provider
    hosts) only gpuctl's firewall rules are removed. It says which files of gpuctl are left on their disks, and on a
    terminal offers to remove them.
    """
    from gpuctl.workflow.clusters.down import down

    done = down(app, forget=forget)
    if app.options.json:
        app.output.json(done)
    return 4 if done.leftovers else 0
