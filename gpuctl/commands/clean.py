"""`gpuctl clean`: free disks, here and on the nodes."""

import click

from gpuctl.options import App, every_cluster_options


@click.command()
@every_cluster_options
@click.option(
    "--older-than", metavar="AGE", help="Here, remove runs that began longer ago, such as 7d (default: 30d)."
)
@click.option(
    "--keep-runs",
    type=click.IntRange(min=0),
    metavar="N",
    help="Here, remove runs of any age, but for the latest N of each cluster; with --older-than only older ones.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="On the nodes also what the next run would use again, and files that runs wrote and runs not all of "
    "which is here: these may be nowhere else.",
)
@click.option(
    "--here",
    is_flag=True,
    help="Only this computer: no node is asked, and runs of nodes that are still there stay.",
)
@click.option("--dry-run", is_flag=True, help="Show what there is and what would be removed.")
def command(
    app: App,
    older_than: str | None,
    keep_runs: int | None,
    everything: bool,
    here: bool,
    dry_run: bool,
) -> int:
    """Remove what gpuctl has left on disks and nobody needs: it shows the sizes, and asks.

    \b
    gpuctl clean --dry-run                 sizes, what would go, why the rest stays
    gpuctl clean                           ask, then remove it: on this computer and on all nodes
    gpuctl clean --cluster a --yes         one cluster's runs and nodes, without a question
    gpuctl clean --here --keep-runs 20     runs of machines that are gone, but for each cluster's latest 20
    gpuctl clean --all --cluster a         before `gpuctl down` of machines that stay

    Here old runs go, of machines that are still there only once these were asked whether they have more of them. On
    the nodes go environments, code and uv but for those used last, wheels, and runs all of which is here; --all also
    removes what is nowhere else. What a process uses, a run that is not over, the checkpoints that `gpuctl train
    --resume` would take and whatever is not gpuctl's always stay. It is about all clusters, or the one that --cluster
    names; while a run is going on there, nothing is removed, and the exit status is 2.
    """
    from gpuctl.errors import Usage
    from gpuctl.workflow.upkeep.clean import clean_all
    from gpuctl.workflow.upkeep.cleaning import Policy
    from inventories.validate import parse_duration_s

    if here and everything:
        raise Usage("--all is about the nodes, and --here leaves them out: give one of the two.")
    policy = Policy(
        older_than_s=None if older_than is None else parse_duration_s(older_than),
        keep_runs=keep_runs,
        everything=everything,
    )
    document = clean_all(app, policy, dry_run=dry_run, here_only=here)
    if app.options.json:
        app.output.json(document)
    return 4 if document["failed"] or document["not_asked"] else 0
