"""`gpuctl fab`: tasks of the user's fabfile on every node, or on one."""

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import TAIL, common_options, json_note


@click.command(context_settings=TAIL)
@common_options
@click.option(
    "--rank", metavar="R", help="Only on this node (its number or name).", shell_complete=completions.nodes
)
@click.option("-l", "--list", "listing", is_flag=True, help="List the tasks, as without any TASK.")
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[TASK [--ARG ...]]...",
    shell_complete=completions.tasks,
)
def command(app: App, rank: str | None, listing: bool, words: tuple[str, ...]) -> int | None:
    """Run tasks of your fabfile on every node at once, or on one.

    \b
    gpuctl fab                      list the tasks of fabfile.py, here or in a folder above
    gpuctl fab who --greeting hi    run one; several run one after the other
    gpuctl fab who --help           its arguments

    Each task gets a Fabric connection to the node as its context. The host key is pinned. If a task names other
    tasks as `pre` or `post`, these run once, on this computer. The exit status is 1 if a task failed on a node.
    """
    from gpuctl.workflow.machines import fab

    if listing or not words:
        return fab.show_tasks(app)
    if note := json_note(app, "fab ", "task", words):
        app.output.say(note)
    return fab.run_tasks(app, words, rank)
