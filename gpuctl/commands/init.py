"""`gpuctl init`: write the project's gpuctl.yaml."""

import click

from gpuctl.app import App
from gpuctl.command_line.options import no_cluster_options


@click.command()
@no_cluster_options
@click.option(
    "--schema", is_flag=True, help="Print the JSON schema of gpuctl.yaml, for editors, and write nothing."
)
@click.argument("script", required=False, metavar="[SCRIPT]")
def command(app: App, schema: bool, script: str | None) -> None:
    """Write a gpuctl.yaml for the project in the current folder: what is run, what it needs, on which cluster.

    It asks nothing: it looks at the project, and says what it chose and why. SCRIPT says which script is run. The
    cluster is the default one, or the only one, if it is there. A file that is there already is left alone.
    """
    from pathlib import Path

    if schema:
        from gpuctl.command_line.job_file.schema import schema as made

        app.output.json(made())
        return
    from gpuctl.command_line.job_file.propose import propose, write

    above = app.job_path
    proposal = propose(Path.cwd(), app.store, script=script)
    write(proposal)
    for line in proposal.reasons():
        app.output.say(line)
    if above is not None:
        app.output.say(f"note: {above} no longer holds in this folder")
    app.output.say(f"wrote {proposal.path.name}. Try it: gpuctl train --dry-run")
    if app.options.json:
        app.output.json(proposal.document())
