"""`gpuctl config`: limits on money, and defaults of new clusters."""

from typing import Literal

import click

from gpuctl.app import App
from gpuctl.command_line.options import no_cluster_options
from gpuctl.errors import Usage


@click.command()
@no_cluster_options
@click.option("--schema", is_flag=True, help="Print the JSON schema of the file, for editors.")
@click.argument("action", type=click.Choice(["show", "set", "unset"]), default="show")
@click.argument("key", required=False)
@click.argument("values", nargs=-1, metavar="[VALUE]...")
def command(
    app: App, schema: bool, action: Literal["show", "set", "unset"], key: str | None, values: tuple[str, ...]
) -> None:
    """Show or change limits on money, and defaults of new clusters.

    \b
    gpuctl config                                    show every key with its value and meaning
    gpuctl config show ttl                           show one key
    gpuctl config set max_hourly_usd 40              refuse an up that brings the total above $40 an hour
    gpuctl config set ttl 8h                         end new clusters after eight hours, unless --ttl says otherwise
    gpuctl config set region eu-frankfurt-1 us-east-1    a region for each cloud
    gpuctl config set notify @~/.config/notify       send messages to each line of this file, as --notify does
    gpuctl config unset ttl                          remove the default

    The values are in config.yaml under $GPUCTL_HOME. Options on the command line win over spec files and gpuctl.yaml,
    these over the defaults here, and these over gpuctl's own. The plan of `gpuctl up` names the defaults in it.
    """
    from gpuctl.workflow.clusters import config

    if schema:
        app.output.json(config.schema())
        return
    if action == "show" and values:
        raise Usage(f"To change a value: gpuctl config set {key} VALUE.")
    if action != "show":
        if key is None or bool(values) != (action == "set"):
            raise Usage(f"Write gpuctl config {action} KEY{' VALUE' * (action == 'set')}.")
        config.change(app, key, values)
    if app.options.json:
        app.output.json(config.document(app, key if action == "show" else None))
    elif action == "show":
        from gpuctl.tables.config import config_table

        app.output.table(config_table(config.rows(app, key)))
