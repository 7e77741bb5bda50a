"""`gpuctl logs`: a run's logs, or follow them."""

from typing import TYPE_CHECKING

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options
from gpuctl.text import clean

if TYPE_CHECKING:
    from gpuctl.command_results.runs import LogLine
    from inventories.runs.result import Result


@click.command()
@common_options
@click.argument("run", required=False, shell_complete=completions.runs)
@click.option("-f", "--follow", is_flag=True, help="Follow the run to its end. Ctrl-C does not stop the run.")
@click.option("--rank", type=int, metavar="R", help="Only this rank (the number of a process).")
def command(app: App, run: str | None, follow: bool, rank: int | None) -> int:
    """Show the logs of a run (default: the latest), of all ranks or one.

    \b
    gpuctl logs                     what the ranks have written so far
    gpuctl logs -f --rank 0         rank 0, as it writes

    With -f the exit status is the run's: 0 if it succeeded, 1 if not.
    """
    from gpuctl.workflow.runs.logs import ranks_of, read_logs, text_of
    from gpuctl.workflow.runs.runs import latest

    folder = latest(app, run)
    ranks = ranks_of(folder.load_run(), rank)

    printed = False

    def show(line: "LogLine") -> None:
        nonlocal printed
        printed = True
        text = clean(line.text, limit=len(line.text) + 1)
        app.output.text(f"[rank {line.rank}] {text}" if len(ranks) > 1 else text)

    try:
        read = (lambda _: None) if app.options.json else show
        result = read_logs(app, folder, read, follow=follow, ranks=ranks)
    except KeyboardInterrupt:
        if app.options.json:
            raise
        app.output.say(f"run {folder.id} continues; gpuctl stop {folder.id} stops it")
        return 130
    if app.options.json:
        texts = [{"rank": number, "log": text_of(folder, number)} for number in ranks]
        app.output.json({"run": folder.id, "status": result.status, "ranks": texts})
    elif not printed:
        app.output.say(_nothing_printed(result, rank))
    if follow and not app.options.json:
        error = result.first_error
        if error is not None:
            from gpuctl.run_results.failures.failures import headline

            app.output.say(clean("".join(headline(error))))
        app.output.say(f"run {result.run}  {result.status}")
    if follow and result.status != "running":
        from gpuctl.workflow.jobs.scale_for_run import end_idle_machines

        end_idle_machines(app, "logs", app.store.cluster(result.cluster))
    return 1 if follow and result.status != "succeeded" else 0


def _nothing_printed(result: "Result", rank: int | None) -> str:
    """Return the note on a run of which no rank, or not this one, has printed a line."""
    subject, extent = ("no rank", "anything") if rank is None else (f"rank {rank}", "nothing")
    if result.status == "running":
        return f"note: {subject} has printed {extent} yet; gpuctl logs -f {result.run} follows the run"
    return f"note: {subject} of run {result.run} printed {extent}"
