"""`gpuctl report`: runs as one HTML file."""

from pathlib import Path

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options, runs_options


@click.command()
@common_options
@runs_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.html",
    help="File to write. It is replaced if it exists.",
)
def command(app: App, runs: tuple[str, ...], last: int | None, tag: tuple[str, ...], output: Path) -> None:
    """Write a report of runs: one HTML file for people who have no gpuctl.

    \b
    gpuctl report -o report.html                     the latest run
    gpuctl report --tag sweep=lr -o report.html      all runs of a sweep, and which is the best
    gpuctl report base best -o report.html           two runs

    The file has the table of differences, the losses, speeds, and a section on each run: times, cost, ranks, failure
    with the end of its log, and the command that starts it again. It opens from disk in any browser, loads nothing,
    and follows the browser's dark or light colors. Runs are chosen as for gpuctl results.
    """
    from gpuctl.run_report.page import check_report, write_report
    from gpuctl.workflow.runs.results import results_of
    from inventories.runs.labels import tags_of_run

    check_report(output)
    results = results_of(app, runs, last=last, tags=tags_of_run(tag))
    app.output.say(write_report(results, output))
    if app.options.json:
        app.output.json({"file": output, "runs": [result.run for result in results]})
