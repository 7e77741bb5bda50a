"""`gpuctl push`: files to the nodes."""

from pathlib import Path

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.option(
    "--rank", metavar="R", help="Only to this node (its number or name).", shell_complete=completions.nodes
)
@click.option(
    "--into-project",
    is_flag=True,
    help="Copy it to its own place in the copy of the project that train makes.",
)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", required=False)
def command(app: App, rank: str | None, into_project: bool, source: Path, destination: str | None) -> None:
    """Copy a file or folder into a folder of every node (its home unless named), or of one.

    \b
    gpuctl push data sets                      makes ~/sets/data there
    gpuctl push --into-project data            where scripts of this project find it as data

    A relative DESTINATION is one in the node's home. All of a folder is copied, also what git ignores, but no
    credentials (.ssh, .aws, …). Only changed files are copied; nothing is removed on the node.
    """
    from gpuctl.library.cluster import Cluster

    nodes = Cluster(app).push(
        source, destination, rank=rank, into_project=into_project, allow_large=app.options.yes
    )
    if app.options.json:
        app.output.json({"nodes": nodes})
