"""`gpuctl ssh`: a shell on a node."""

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import TAIL, common_options


@click.command(context_settings=TAIL)
@common_options
@click.argument("rank", default="0", metavar="[NODE]", shell_complete=completions.nodes)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[CMD]...")
def command(app: App, rank: str, words: tuple[str, ...]) -> int:
    """Open a shell on a node, or run a command there, with the system's ssh; in a pod through the API server.

    NODE is a node's number or name (default: 0). ssh uses the cluster's pinned host keys and its own key.
    Plain ssh, scp and rsync work with the same configuration: gpuctl ssh-config > config; ssh -F config NAME
    """
    from gpuctl.workflow.machines.access import open_shell

    return open_shell(app, rank, words)
