"""`gpuctl top`: how busy the nodes are."""

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.option(
    "--rank", metavar="R", help="Only this node (its number or name).", shell_complete=completions.nodes
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    metavar="SECONDS",
    help="Time between two samples (default: 1).",
)
def command(app: App, rank: str | None, every_s: float) -> int:
    """Show how busy the nodes are: GPUs, CPUs, memory, network, disk.

    \b
    gpuctl top                      live, until Ctrl-C
    gpuctl top --json               one sample, as one document
    gpuctl top | cat                one sample, as text

    Network bytes are those of the interfaces to the other nodes. A lost node is shown with the reason, and gpuctl
    tries to connect again. With one sample, the exit status is 1 if a node could not be asked.
    """
    from gpuctl.workflow.machines.top import top

    return top(app, rank=rank, every_s=every_s)
