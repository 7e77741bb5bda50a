"""`gpuctl doctor`: what would fail, and the fix."""

import click

from gpuctl.options import App, common_options


@click.command()
@common_options
@click.option("--provider", metavar="P", help="oci or aws. Default: told by --shape, or the cluster's.")
@click.option("--shape", metavar="S", help="The machines that you want, as for `up`.")
@click.option("--count", type=int, metavar="N", help="How many of them (default: 1).")
@click.option("--region", metavar="R", help="The provider's region.")
@click.option("--image", metavar="I", help="Image name or id.")
@click.option("--spot", is_flag=True, help="Preemptible machines.")
@click.option("--profile", metavar="NAME", help="Profile of the SDK's configuration.")
@click.option("--compartment", metavar="OCID", help="OCI: the compartment.")
def command(app: App, spot: bool, **asked: str | int | None) -> int:
    """Check what `up` and `train` need: keys, credentials, permissions, quota, clock, versions.

    \b
    gpuctl doctor                                   this computer, and the cluster's account
    gpuctl doctor --shape VM.GPU.A10.2 --count 2    could these be made now?

    It asks and changes nothing: permissions are tried by dry runs, which create nothing.
    """
    from gpuctl.workflow.doctor import doctor, show
    from inventories.spec import Spec
    from inventories.validate import check_option

    given = {key: check_option(key, value) for key, value in asked.items() if value is not None}
    document = doctor(app, Spec(cluster=app.options.cluster, spot=spot, **given))
    show(app, document)
    if app.options.json:
        app.output.json(document)
    return 0 if document["ok"] else 1
