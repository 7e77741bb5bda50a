"""`gpuctl doctor`: what would fail, and the fix."""

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options
from gpuctl.errors import Usage

if TYPE_CHECKING:
    from gpuctl.command_results.upkeep import ClusterDoctorResult, DoctorResult


@click.command()
@common_options
@click.option(
    "--provider",
    metavar="P",
    help="oci, aws, eks, oke or kubernetes (default: inferred from --shape or --context, or the cluster's).",
    shell_complete=completions.clouds,
)
@click.option(
    "--shape",
    metavar="S",
    help="Machine shape, as for `up`.",
    shell_complete=completions.shapes,
)
@click.option("--count", type=int, metavar="N", help="Number of machines (default: 1).")
@click.option("--region", metavar="R", help="Region of the provider.")
@click.option("--image", metavar="I", help="Image name or id.")
@click.option("--spot", is_flag=True, help="Spot machines.")
@click.option("--subnet-id", metavar="ID", help="An existing subnet, as for `up`.")
@click.option("--ttl", metavar="D", help="Time after which the machines end, as for `up`.")
@click.option("--profile", metavar="NAME", help="Profile of the SDK's configuration.")
@click.option("--compartment", metavar="OCID", help="OCI: the compartment.")
@click.option("--context", metavar="NAME", help="Kubernetes: context of the kubeconfig.")
@click.pass_context
def command(
    context: click.Context, /, app: App, spot: bool, ttl: str | None, **options: str | int | None
) -> int:
    """Check what `up` and `train` need: keys, credentials, permissions, quota, clock, versions.

    \b
    gpuctl doctor                                   this computer, and the cluster's account
    gpuctl doctor --shape VM.GPU.A10.2 --count 2    could these be made now?
    gpuctl doctor --cluster [NAME]                  the machines, and the network between them

    It changes nothing: permissions are tried by dry runs. With --cluster it runs `train`'s preflight on the machines,
    and a short all-reduce that measures the bandwidth between them.
    """
    from gpuctl.workflow.clusters.doctor import doctor, show

    if context.get_parameter_source("cluster") is ParameterSource.COMMANDLINE:
        from gpuctl.workflow.clusters.doctor_cluster import doctor_cluster

        typed = {"spot": spot, "ttl": ttl, **options}
        other = next((f"--{name.replace('_', '-')}" for name, value in typed.items() if value), None)
        if other is not None:
            raise Usage(
                f"--cluster looks at machines that are there, {other} asks for new ones: give one of the two. "
                f"For new machines of that cluster: gpuctl --cluster {app.options.cluster} doctor {other} …"
            )
        document: ClusterDoctorResult | DoctorResult = doctor_cluster(app)
    else:
        from inventories.specs.spec import Spec
        from inventories.specs.validate import check_option

        values = {key: check_option(key, value) for key, value in options.items() if value is not None}
        ttl_s = None if ttl is None else check_option("ttl_s", ttl)
        document = doctor(app, Spec(cluster=app.options.cluster, spot=spot, ttl_s=ttl_s, **values))
    show(app, document.findings)
    if app.options.json:
        app.output.json(document)
    return 0 if document.ok else 1


def _with_optional_name(options: list[click.Parameter]) -> list[click.Parameter]:
    """`--cluster` alone: that of the global option, or the default. Everywhere else it needs a name."""
    bare = click.Option(
        ["--cluster"],
        metavar="[NAME]",
        is_flag=False,
        flag_value="",
        help="Check the machines of that cluster and the network between them. NAME may be left out here.",
        callback=lambda _context, _option, name: name or None,
        shell_complete=next(option for option in options if option.name == "cluster").shell_complete,
    )
    return [bare if option.name == "cluster" else option for option in options]


command.params = _with_optional_name(command.params)
