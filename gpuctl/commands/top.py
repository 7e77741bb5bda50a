"""`gpuctl top`: how busy the nodes are."""

import click

from gpuctl import completions
from gpuctl.options import App, common_options


@click.command()
@common_options
@click.option(
    "--rank", metavar="R", help="Only this node, by rank or name.", shell_complete=completions.nodes
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    metavar="SECONDS",
    help="How often each node is sampled while you look (default: 1).",
)
def command(app: App, rank: str | None, every_s: float) -> int:
    """Show how busy the nodes are: GPUs, CPUs, memory, network, disk.

    \b
    gpuctl top                      live, until Ctrl-C
    gpuctl top --json               one sample, as one document
    gpuctl top | cat                one sample, as text

    The network's bytes are those of the interfaces that lead to the other nodes. A node that is lost is shown
    with the reason and connected to again. The exit status is 1 if a node of the one sample could not be asked.
    """
    from gpuctl.workflow.machines.top import top

    return top(app, rank=rank, every_s=every_s)
