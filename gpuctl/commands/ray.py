"""`gpuctl ray`: the Ray that `train --mode ray` starts, and keeps for the next run."""

from typing import Literal

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options
from gpuctl.errors import Usage


@click.command()
@common_options
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Port of the dashboard on this computer (default: 8265, or a free one).",
)
@click.argument("action", type=click.Choice(["status", "dashboard", "stop"]), default="status")
def command(app: App, action: Literal["status", "dashboard", "stop"], port: int | None) -> int:
    """Show the cluster's Ray, open its dashboard, or stop it.

    \b
    gpuctl ray status      show on which machines Ray runs
    gpuctl ray dashboard   open a tunnel to its dashboard, until Ctrl-C
    gpuctl ray stop        stop exactly the processes that gpuctl started, and remove their folders

    `gpuctl train --mode ray` starts a head on the first machine and a worker on each other machine, and keeps them
    for the next run. `gpuctl down` stops them, too.
    """
    from gpuctl.workflow.clusters import ray

    if action == "dashboard":
        if app.options.json:
            raise Usage("gpuctl ray dashboard stays until Ctrl-C and has no document to print.")
        token = app.store.cluster(app.options.cluster).ray_token_path
        ray.dashboard(
            app, port, lambda at: app.output.say(f"{at}  (Ctrl-C ends it; it asks for the token in {token})")
        )
    ends = ray.stop(app) if action == "stop" else []
    nodes = ends if action == "stop" else ray.status(app)
    if app.options.json:
        app.output.json({"cluster": app.options.cluster, "nodes": nodes})
    return 4 if any(node.error for node in ends) else 0
