"""`gpuctl stop`: end a run on every node."""

import click

from gpuctl.options import App, common_options


@click.command()
@common_options
@click.argument("run", required=False)
def command(app: App, run: str | None) -> int:
    """Stop a run on every node and bring its results back; the latest run unless named."""
    from gpuctl.workflow.stop import stop

    result, errors = stop(app, run)
    if app.options.json:
        app.output.json(result)
    else:
        app.output.say(f"run {result.run} is over: {result.status}")
    for error in errors:
        app.output.error(error)
    return 4 if errors else 0
