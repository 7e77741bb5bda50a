"""`gpuctl keep`: the end after a time without use, put off."""

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options
from inventories.specs.checks import check_keep_s


@click.command()
@common_options
@click.argument("time", default="1h", metavar="[TIME]")
def command(app: App, time: str) -> int:
    """Keep the machines of an unused cluster for a time, such as 3h (default: 1h, at most 24h).

    For a cluster that was made with `gpuctl up --idle`. TIME begins now, and replaces that of an earlier `keep`. It
    does not change --ttl. A machine that reboots forgets it.
    """
    from gpuctl.workflow.clusters.keep import keep

    status, problems = keep(app, check_keep_s(time))
    if app.options.json:
        app.output.json(status)
    else:
        app.output.say(
            f"the machines stay until {status.kept_until or 'an unknown time'} at least, also unused"
        )
    for problem in problems:
        app.output.error(problem)
    return 4 if problems else 0
