"""`gpuctl results`: one run's results, or several side by side."""

from pathlib import Path

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options


@click.command()
@common_options
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completions.runs)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Write a plot.")
@click.option(
    "--csv", type=click.Path(path_type=Path), metavar="FILE", help="Write a table with one row for each run."
)
def command(app: App, runs: tuple[str, ...], plot: Path | None, csv: Path | None) -> None:
    """Show a run's results: times, losses, accuracy, cost. Several runs are shown side by side.

    Without RUN it shows the latest. The end of a run's id is enough. Results stay on this computer
    when the machines are gone. Of a search (`gpuctl tune`) all trials are there, the best first; in the CSV they are
    rows below its own.
    """
    from gpuctl.output_files import check_picture
    from gpuctl.run_results.export import check_table, write_csv, write_plot
    from gpuctl.tables.lists import ComparisonTable
    from gpuctl.tables.run import run_table
    from gpuctl.workflow.runs.unfinished_runs import results_of

    if csv is not None:
        check_table(csv)
    if plot is not None:
        check_picture(plot)
    results = results_of(app, runs)
    if csv is not None:
        app.output.say(write_csv(results, csv))
    if plot is not None:
        app.output.say(write_plot(results, plot))
    if app.options.json:
        app.output.json({"runs": results})
    elif len(results) == 1:
        app.output.table(run_table(results[0]))
    else:
        app.output.table(ComparisonTable(results))
