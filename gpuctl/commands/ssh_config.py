"""`gpuctl ssh-config`: an OpenSSH configuration of the cluster."""

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options


@click.command("ssh-config")
@common_options
def command(app: App) -> None:
    """Print an OpenSSH configuration of the cluster, so that plain ssh works.

    \b
    gpuctl ssh-config > cluster.conf
    ssh -F cluster.conf default-0
    """
    from gpuctl.workflow.machines.access import ssh_config

    text, path = ssh_config(app)
    if app.options.json:
        app.output.json({"path": str(path), "config": text})
    else:
        app.output.text(text)
