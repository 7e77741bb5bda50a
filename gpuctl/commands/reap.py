"""`gpuctl reap`: everything that carries our tags in an account, to nothing."""

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import every_cluster_options, region_options
from gpuctl.errors import Usage


@click.command()
@every_cluster_options
@click.argument("names", nargs=-1, metavar="[NAME|ID]...")
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="P",
    help="oci, aws, eks or oke (default: those that are set up here); local: hosts on this computer.",
    shell_complete=completions.clouds,
)
@region_options
@click.option("--compartment", metavar="OCID", help="OCI: the compartment (default: all that you may see).")
@click.option(
    "--expired",
    is_flag=True,
    help="Only clusters whose --ttl is over, and networks that no cluster uses any more.",
)
@click.option(
    "--idle",
    is_flag=True,
    help="Only clusters without use for the time of their --idle, as their machines report, and networks that no "
    "cluster uses any more; with --expired both.",
)
@click.option("--dry-run", is_flag=True, help="Only list, with age and price.")
def command(
    app: App,
    names: tuple[str, ...],
    providers: tuple[str, ...],
    regions: tuple[str, ...],
    all_regions: bool,
    profile: str | None,
    compartment: str | None,
    expired: bool,
    idle: bool,
    dry_run: bool,
) -> int:
    """Find every cluster of gpuctl in your cloud accounts by its tags, and remove it.

    \b
    gpuctl reap --dry-run                      list what is there, with age and price
    gpuctl reap --provider aws --all-regions   ask, then remove all of it
    gpuctl reap default --region us-east-1     only clusters of this name or id
    gpuctl reap --expired --yes                for cron: clusters whose --ttl is over
    gpuctl reap --idle --yes                   for cron: clusters that nobody uses

    --idle asks the machines by SSH, with the keys of this computer's clusters. A cluster with a machine that does not
    answer stays.

    With --provider local it ends hosts on this computer that outlived the files of their cluster.

    It looks at the accounts, not at this computer's files. In a shared account it also finds the clusters of others,
    and shows whose they are. Resources without gpuctl's tags are never touched. What can't be looked at or removed is
    named; the rest is still removed, and the exit status is 4.
    """
    from gpuctl.workflow.clusters.reap import Selection, reap_all, reap_local
    from provision.rented.scan import Scope

    if "local" in providers and set(providers) != {"local"}:
        raise Usage("--provider local looks at this computer, the others at accounts: run reap twice.")
    if app.cluster_named:
        named = app.options.cluster
        if set(names) - {named}:
            raise Usage(
                f"--cluster {named} and {' '.join(names)} name different clusters: leave out --cluster."
            )
        names = (named,)
    scope = Scope(
        providers=providers,
        regions=regions,
        all_regions=all_regions,
        profile=profile,
        compartment=compartment,
    )
    selection = Selection(names=names, one_each=app.cluster_named, expired=expired, idle=idle)
    if "local" in providers:
        document = reap_local(app, selection, dry_run=dry_run)
    else:
        document = reap_all(app, scope, selection, dry_run=dry_run)
    if app.options.json:
        app.output.json(document)
    problems = (document.leftovers, document.failed, document.not_looked_at, document.not_asked)
    return 4 if any(problems) else 0
