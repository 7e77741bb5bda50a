"""`gpuctl key`: the access to a cluster as one encrypted file."""

import os
from pathlib import Path
from typing import Literal

import click

from gpuctl.app import App
from gpuctl.command_line.options import common_options
from gpuctl.errors import Usage

VARIABLE = "GPUCTL_PASSPHRASE"


@click.command()
@common_options
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help=f"File whose first line is the passphrase (default: ${VARIABLE}, or it is asked for).",
)
@click.argument("action", type=click.Choice(["export", "import"]))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def command(app: App, passphrase_file: Path | None, action: Literal["export", "import"], file: Path) -> None:
    """Take a cluster to another computer, in a file that a passphrase opens.

    \b
    gpuctl key export my-cluster.key   here: keys, host keys, inventory
    gpuctl key import my-cluster.key   there: every command works at once

    Whoever has the file and the passphrase can use and remove the machines. It has no credentials of a cloud: set
    these up on the other computer. Results that are on this computer stay here.
    """
    from gpuctl.workflow.clusters.key import export_key, import_key

    exports = action == "export"
    if not exports and not file.exists():
        raise Usage(
            f"There is no file '{file}'. Write it with `gpuctl key export FILE` on the other computer."
        )
    passphrase = _passphrase(app, passphrase_file, twice=exports)
    done = export_key(app, file, passphrase) if exports else import_key(app, file, passphrase)
    if app.options.json:
        app.output.json(done)
    elif exports:
        app.output.say(
            f"wrote {file}: `gpuctl key import` takes the cluster {done.cluster} to another computer"
        )
    else:
        app.output.say(
            f"the cluster {done.cluster} is known here now: gpuctl status --cluster {done.cluster}"
        )


def _passphrase(app: App, file: Path | None, *, twice: bool) -> str:
    """Return the passphrase from the file, the environment or the terminal. Raises InvalidInput for a short one.

    Raises Usage for a file that others can read.
    """
    from gpuctl.option_table.values import private_text
    from inventories.disk.sealed import check_passphrase

    if file is not None:
        text = private_text(file, f"--passphrase-file {file}")
        return check_passphrase(text.partition("\n")[0].rstrip("\r"))
    passphrase = os.environ.get(VARIABLE)
    return check_passphrase(
        app.output.ask_secret("Passphrase", twice=twice) if passphrase is None else passphrase
    )
