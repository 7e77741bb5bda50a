"""`gpuctl results`: one run's results, or a table of several."""

from pathlib import Path

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options, runs_options


@click.command()
@common_options
@runs_options
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Draw the losses, and speeds in FILE-speed.png.",
)
@click.option(
    "--csv",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a table with a row for each epoch or step of a run.",
)
def command(
    app: App,
    runs: tuple[str, ...],
    last: int | None,
    tag: tuple[str, ...],
    plot: Path | None,
    csv: Path | None,
) -> None:
    """Show a run's results: times, losses, accuracy, cost. Several runs are a table, with the best of them.

    \b
    gpuctl results                     the latest run
    gpuctl results base lr-0.1         two runs, by name or by the end of their ids
    gpuctl results --last 5            the last five runs of the cluster
    gpuctl results --tag sweep=lr      all runs that were started with --tag sweep=lr
    gpuctl results best                the best run of the latest run's script

    The table has a column for each setting that differs: options of the script, commit, nodes, ranks. The best run
    is the first: it ended with the highest accuracy, or else the lowest perplexity or loss, as most runs have it.
    Runs that differ in their seed alone have a row with their mean and spread.

    Results stay on this computer when the machines are gone. Of a search (`gpuctl tune`) all trials are there, the
    best first; in the CSV they are rows below its own.
    """
    from gpuctl.output_files import check_picture
    from gpuctl.run_results.csv_table import check_table, write_csv
    from gpuctl.run_results.plots import write_plot
    from gpuctl.tables.comparison import comparison
    from gpuctl.tables.run import run_table
    from gpuctl.workflow.runs.results import results_of, sweep_sentence
    from inventories.runs.labels import tags_of_run

    if csv is not None:
        check_table(csv)
    if plot is not None:
        check_picture(plot)
    results = results_of(app, runs, last=last, tags=tags_of_run(tag))
    if csv is not None:
        app.output.say(write_csv(results, csv))
    if plot is not None:
        app.output.say(write_plot(results, plot))
    if app.options.json:
        app.output.json({"runs": results})
    elif len(results) == 1:
        app.output.table(run_table(results[0]))
        if sentence := sweep_sentence(app, results[0]):
            app.output.say(sentence)
    else:
        app.output.table(comparison(results))
