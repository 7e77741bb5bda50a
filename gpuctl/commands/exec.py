"""`gpuctl exec`: a command on every node, or on one."""

import click

from gpuctl import completions
from gpuctl.options import TAIL, App, common_options, json_note


@click.command(context_settings=TAIL)
@common_options
@click.option(
    "--rank", metavar="R", help="Only on this node, by rank or name.", shell_complete=completions.nodes
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD [ARGS]...")
def command(app: App, rank: str | None, words: tuple[str, ...]) -> int:
    """Run a command on every node at once, or on one.

    \b
    gpuctl exec -- nvidia-smi -L               arguments, passed on exactly
    gpuctl exec --rank 0 -- 'df -h | tail -1'  one word is a shell command line

    The exit status is 0 if it was 0 on every node, else 1.
    """
    from gpuctl.workflow.machines.access import execute

    if note := json_note(app, "exec -- ", "command", words):
        app.output.say(note)
    outcomes = execute(app, words, rank)
    if app.options.json:
        app.output.json({"nodes": outcomes})
    return 0 if all(outcome["exit_code"] == 0 for outcome in outcomes) else 1
