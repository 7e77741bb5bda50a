"""`gpuctl up`: create the cluster's machines and prepare them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuctl.app import App
from gpuctl.command_line.options import command_options, common_options
from gpuctl.option_table.up_options import UpSettings
from inventories.option import Option
from inventories.specs.spec import Spec

if TYPE_CHECKING:
    from gpuctl.library.options import UpRequest

DRY_RUN = Option(
    flags=("--dry-run",),
    keyword="dry_run",
    kind=bool,
    default=False,
    help="Only show the plan and its price; with --verbose every request.",
)


@click.command()
@common_options
@command_options("up", Spec, UpSettings, more=(DRY_RUN,))
def command(
    app: App,
    dry_run: bool,
    file: Path | None,
    **options: Any,  # noqa: ANN401 - each option has its own type
) -> None:
    """Create the cluster's machines and prepare them. Safe to repeat: it creates only what is missing.

    \b
    gpuctl up --provider local --count 2       two hosts on this machine, no account
    gpuctl up --hosts inventory.yaml           machines that you have
    gpuctl up --shape VM.GPU.A10.2 --count 2 --ttl 4h    rented, with a time limit of four hours
    gpuctl up --provider kubernetes --count 2  pods in the cluster of your kubeconfig's current context
    gpuctl up --provider eks --shape g5.12xlarge --min 0 --max 4    machines for as long as a run needs them
    gpuctl up --count 3                        one more
    gpuctl up --count 3 --dry-run              show the plan and its price

    A machine that died is replaced. A smaller count ends the idle machines of the highest ranks, after a question.
    Without -f, --provider, --shape and --hosts, the project's gpuctl.yaml says what its cluster is to be. Other
    options win over it. Options marked (clouds) need a rented provider.
    """
    from gpuctl.command_line.job_file.command import file_with_cluster
    from gpuctl.library.options import create, up_request

    named = file is None or _names_a_cluster(click.get_current_context())
    if not any((file, *(options[name] for name in ("provider", "shape", "hosts", "context")))):
        file = file_with_cluster(app)
    name = app.options.cluster if named else None
    request = up_request(name, {**options, "file": file}, default=app.options.cluster)  # type: ignore[typeddict-item]
    if dry_run:
        _show_plan(app, request)
        return
    document = create(app, request)
    if app.options.json:
        app.output.json(document)


def _show_plan(app: App, request: "UpRequest") -> None:
    """Show exactly what would be done."""
    from gpuctl.workflow.clusters import up_plan
    from gpuctl.workflow.clusters.up import plan

    planned, setup, unasked = plan(app, request.spec, boot_timeout_s=request.boot_timeout_s)
    if unasked:
        app.output.say(f"{unasked} So this is what would be made where nothing of gpuctl is yet.")
    if app.options.json:
        for note in planned.notes:
            app.output.say(f"note: {note}")
        app.output.json(up_plan.document(planned, setup, account_asked=not unasked))
        return
    app.output.table(up_plan.drawn(planned, setup))
    if app.options.verbose:
        app.output.text(up_plan.requests_text(planned))


def _names_a_cluster(context: click.Context | None) -> bool:
    """Return whether --cluster was typed, before or after the command's name: it wins over the spec file."""
    while context is not None:
        if context.params.get("cluster") is not None:
            return True
        context = context.parent
    return False
