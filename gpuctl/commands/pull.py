"""`gpuctl pull`: files from the nodes."""

from pathlib import Path

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.option(
    "--rank", metavar="R", help="Only from this node (its number or name).", shell_complete=completions.nodes
)
@click.argument("source")
@click.argument("destination", type=click.Path(path_type=Path), default=".")
def command(app: App, rank: str | None, source: str, destination: Path) -> None:
    """Copy a file or folder of every node into DESTINATION/<node>/, or of one (--rank) into DESTINATION.

    \b
    gpuctl pull sets/out results               ~/sets/out of each node → results/<node>/

    A relative SOURCE is one in the node's home.
    Only plain files are copied; links, pipes and devices are left out and named. A file that exists here with other
    content is not replaced without a question on a terminal, or --yes.
    """
    from gpuctl.library.cluster import Cluster

    nodes = Cluster(app).pull(source, destination, rank=rank, replace=app.options.yes)
    if app.options.json:
        app.output.json({"nodes": nodes})
