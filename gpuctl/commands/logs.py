"""`gpuctl logs`: a run's logs, or follow them."""

import click

from gpuctl import completions
from gpuctl.options import App, common_options


@click.command()
@common_options
@click.argument("run", required=False, shell_complete=completions.runs)
@click.option("-f", "--follow", is_flag=True, help="Follow the run to its end. Ctrl-C does not stop the run.")
@click.option("--rank", type=int, metavar="R", help="Only this rank.")
def command(app: App, run: str | None, follow: bool, rank: int | None) -> int:
    """Show the logs of a run (default: the latest), of all ranks or one.

    \b
    gpuctl logs                     what the ranks have written so far
    gpuctl logs -f --rank 0         rank 0, as it writes

    With -f the exit status is the run's: 0 if it succeeded, 1 if not.
    """
    from gpuctl.workflow.training.logs import logs

    return logs(app, run, follow=follow, rank=rank)
