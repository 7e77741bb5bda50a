"""`gpuctl exec`: a command on every node, or on one."""

from typing import TYPE_CHECKING

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import TAIL, common_options, json_note
from gpuctl.output import NodeLines

if TYPE_CHECKING:
    from gpuctl.command_results.nodes import CommandResult


@click.command(context_settings=TAIL)
@common_options
@click.option(
    "--rank", metavar="R", help="Only on this node (its number or name).", shell_complete=completions.nodes
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD [ARGS]...")
def command(app: App, rank: str | None, words: tuple[str, ...]) -> int:
    """Run a command on every node at once, or on one.

    \b
    gpuctl exec -- nvidia-smi -L               arguments, passed on exactly
    gpuctl exec --rank 0 -- 'df -h | tail -1'  one word is a shell command line

    The exit status is 0 if it was 0 on every node, else 1.
    """
    from gpuctl.workflow.machines.access import chosen, execute

    if note := json_note(app, "exec -- ", "command", words):
        app.output.say(note)
    several = len(chosen(app, rank)) > 1
    show = None if app.options.json else _Lines(app.output, several=several)
    results = execute(app, words, rank, show)
    for result in results:
        if result.error is not None:
            app.output.error(result.error)
    if app.options.json:
        app.output.json({"nodes": results})
    return 0 if all(result.exit_code == 0 for result in results) else 1


class _Lines(NodeLines):
    """Prints the output of a command on the nodes."""

    def line(self, node: str, stream: str, line: bytes) -> None:
        """Print a line."""
        self.show(node, stream, line.decode(errors="replace"))

    def ended(self, result: "CommandResult") -> None:
        """Print the exit status where it is not 0."""
        if result.exit_code != 0:
            self.output.say(f"{self.prefix(result.node)}exit status {result.exit_code}")
