"""`gpuctl why`: who waits for whom in a run."""

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.argument("run", required=False, shell_complete=completions.runs)
@click.option("--stacks", is_flag=True, help="Show the stacks of all ranks, too.")
def command(app: App, run: str | None, stacks: bool) -> int:
    """Say why a run makes no progress: which rank the others wait for, and where it is.

    \b
    gpuctl why                      the latest run: who waits for whom, in one sentence
    gpuctl why --stacks             with the stacks of all ranks' threads
    gpuctl why --json               as one document

    The run goes on and is not changed. Every rank is asked for its stacks, and for the collectives that torch's
    flight recorder has. The stacks are kept in the run's folder on this computer.

    Exit status 4 if the run hangs, or if a node could not be asked.
    """
    from gpuctl.workflow.runs.why import why

    hang = why(app, run)
    if app.options.json:
        app.output.json(hang)
    else:
        from gpuctl.tables.why import why_table

        app.output.table(why_table(hang, stacks=stacks))
    for error in hang.errors:
        app.output.error(error)
    return 4 if hang.errors or hang.verdict == "hung" else 0
