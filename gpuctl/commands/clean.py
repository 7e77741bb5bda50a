"""`gpuctl clean`: free disks, here and on the nodes."""

import click

from gpuctl.app import App
from gpuctl.command_line.options import every_cluster_options


@click.command()
@every_cluster_options
@click.option(
    "--older-than",
    metavar="AGE",
    help="On this computer, remove runs older than this, such as 7d (default: 30d).",
)
@click.option(
    "--keep-runs",
    type=click.IntRange(min=0),
    metavar="N",
    help="On this computer, keep the latest N runs of each cluster and remove the others; with --older-than, only "
    "those of them that are older.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="On the nodes, also remove what the next run would use again, and files of runs that are not on this "
    "computer. There may be no other copy of these files.",
)
@click.option(
    "--here",
    is_flag=True,
    help="Clean this computer only. Runs of nodes that still exist stay.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
def command(
    app: App,
    older_than: str | None,
    keep_runs: int | None,
    everything: bool,
    here: bool,
    dry_run: bool,
) -> int:
    """Remove files of gpuctl that nobody needs, here and on the nodes. It shows the sizes and asks.

    \b
    gpuctl clean --dry-run                 show sizes, what would be removed, and why the rest stays
    gpuctl clean                           ask, then remove: on this computer and on all nodes
    gpuctl clean --cluster a --yes         remove from one cluster only; do not ask
    gpuctl clean --here --keep-runs 20     runs of machines that are gone, but for each cluster's latest 20
    gpuctl clean --all --cluster a         before `gpuctl down` of machines that stay

    On this computer it removes old runs. On the nodes it removes runs whose files are all on this computer, with the
    same content, wheels, and environments, code and uv. Of these three it keeps what was used last. It never removes
    what another process uses, a run that may still be active, the checkpoints that `gpuctl train --resume` would
    take, or files that are not gpuctl's.

    Without --cluster it cleans all clusters. If a run is active on one of them, it removes nothing at all, and the
    exit status is 2. Only --here works then.
    """
    from gpuctl.errors import Usage
    from gpuctl.workflow.clusters.clean.choices import Policy
    from gpuctl.workflow.clusters.clean.clean import clean_all
    from inventories.specs.checks import parse_duration_s

    if here and everything:
        raise Usage("--all is about the nodes, and --here leaves them out: give only one of them.")
    policy = Policy(
        older_than_s=None if older_than is None else parse_duration_s(older_than, "--older-than"),
        keep_runs=keep_runs,
        everything=everything,
    )
    document = clean_all(app, policy, dry_run=dry_run, here_only=here)
    if app.options.json:
        app.output.json(document)
    return 4 if document.failed or document.not_asked else 0
