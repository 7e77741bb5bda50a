"""`gpuctl adopt`: a cluster that another computer made."""

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import every_cluster_options, region_options


@click.command()
@every_cluster_options
@click.argument("cluster_id", required=False, metavar="[ID]")
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="P",
    help="oci, aws, eks or oke (default: those that are set up here).",
    shell_complete=completions.clouds,
)
@region_options
@click.option("--context", metavar="NAME", help="Look in this context of the kubeconfig, for pods there.")
@click.option("--compartment", metavar="OCID", help="OCI: the compartment (default: all that you may see).")
def command(
    app: App,
    cluster_id: str | None,
    providers: tuple[str, ...],
    regions: tuple[str, ...],
    all_regions: bool,
    profile: str | None,
    context: str | None,
    compartment: str | None,
) -> None:
    """Take over a cluster that another computer made, or whose files here were lost.

    \b
    gpuctl adopt                   the only cluster of gpuctl in your accounts
    gpuctl adopt --cluster big     the cluster of that name
    gpuctl adopt --all-regions     look in every region
    gpuctl adopt --context NAME    a cluster of pods in an existing Kubernetes cluster

    It finds the cluster by its tags and rebuilds its files here. Host keys come from the machines' user-data, which
    the account can read. Machines get a new SSH key by the cloud's own means: EC2 Instance Connect on AWS, Run
    Command on OCI; pods need none. The other computer keeps its access. It asks first, and shows who made the
    cluster. Again, it brings runs that were started elsewhere since.
    """
    from gpuctl.tables.lists import machines_table
    from gpuctl.workflow.clusters.adopt import adopt
    from provision.rented.scan import Scope

    scope = Scope(
        providers=providers,
        regions=regions,
        all_regions=all_regions,
        profile=profile,
        compartment=compartment,
    )
    status = adopt(app, scope, cluster_id, context=context)
    if app.options.json:
        app.output.json(status)
    else:
        app.output.table(machines_table(status))
