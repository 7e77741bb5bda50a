"""`gpuctl up`: create the cluster's machines and prepare them."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import common_options

if TYPE_CHECKING:
    from gpuctl.library.options import UpRequest


@click.command()
@common_options
@click.option(
    "--provider",
    metavar="P",
    help="local, hosts, oci, aws, eks, oke or kubernetes (default: inferred from --shape, --hosts or --context).",
    shell_complete=completions.providers,
)
@click.option(
    "--shape",
    metavar="S",
    help="Machine shape, such as VM.GPU.A10.2 (OCI) or g5.12xlarge (AWS).",
    shell_complete=completions.shapes,
)
@click.option(
    "--count", type=int, metavar="N", help="Number of machines (default: as many as there are, or 1)."
)
@click.option(
    "--min", type=int, metavar="N", help="Machines that stay between runs, such as 0; needs --max. (eks, oke)"
)
@click.option(
    "--max",
    type=int,
    metavar="N",
    help="The most machines of a run: it starts those that it needs, and ends them after it. (eks, oke)",
)
@click.option("--region", metavar="R", help="Region of the provider. (clouds)")
@click.option("--compartment", metavar="OCID", help="Compartment of the machines. (oci)")
@click.option("--profile", metavar="NAME", help="Profile in the SDK's own configuration. (clouds)")
@click.option(
    "--context", metavar="NAME", help="Context of the kubeconfig (default: the current one). (kubernetes)"
)
@click.option(
    "-f",
    "--file",
    "file",
    type=click.Path(path_type=Path),
    metavar="SPEC.yaml",
    help="Read what is wanted from a spec file.",
)
@click.option(
    "--hosts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Inventory file of machines that you have.",
)
@click.option(
    "--image", metavar="I", help="Image name or id; on kubernetes of the containers. (clouds, kubernetes)"
)
@click.option(
    "--driver",
    metavar="auto|none|VERSION",
    help="NVIDIA driver. auto: the image's, or else an installed one (Ubuntu). VERSION: a release branch, such as "
    "580. (clouds; hosts: only if given, and may reboot them)",
)
@click.option("--accept-terms", is_flag=True, help="Accept the terms of a marketplace image. (oci)")
@click.option("--disk-gb", type=int, metavar="G", help="Size of each boot volume, GB. (clouds)")
@click.option("--spot", is_flag=True, help="Rent spot machines, which may be taken away. (clouds)")
@click.option(
    "--ssh-cidr", metavar="CIDR", help="Addresses that may reach SSH, such as 203.0.113.7/32. (clouds)"
)
@click.option(
    "--subnet-id", metavar="ID", help="Use an existing subnet (default: gpuctl's own network). (clouds)"
)
@click.option(
    "--no-public-ip", is_flag=True, help="Put the machines into a private subnet with a NAT gateway. (clouds)"
)
@click.option(
    "--bastion",
    metavar="USER@HOST[:PORT]",
    help="Reach the machines through this bastion; it may be an alias in ~/.ssh/config. (clouds, hosts)",
)
@click.option(
    "--ttl",
    metavar="TIME",
    help="End the machines and their bill after this long, 10m or more, such as 4h. (clouds)",
)
@click.option(
    "--max-cost",
    type=float,
    metavar="USD",
    help="Refuse a plan that could cost more before its --ttl is over. You must also give --ttl.",
)
@click.option("--python", metavar="PATH", help="Use this Python on the machines, and install nothing.")
@click.option(
    "--known-hosts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Host keys of --hosts machines (default: your known_hosts).",
)
@click.option(
    "--accept-new-host-keys", is_flag=True, help="Trust and pin the keys that unknown hosts show now. (hosts)"
)
@click.option(
    "--boot-timeout",
    metavar="TIME",
    help="Maximum time to wait for machines to boot (default: 15m). (clouds)",
)
@click.option("--no-wait", is_flag=True, help="Return when the machines run, before connecting to them.")
@click.option(
    "--dry-run", is_flag=True, help="Only show the plan and its price; with --verbose every request."
)
def command(
    app: App,
    file: Path | None,
    ttl: str | None,
    max_cost: float | None,
    known_hosts: Path | None,
    accept_new_host_keys: bool,
    boot_timeout: str | None,
    no_wait: bool,
    dry_run: bool,
    spot: bool,
    accept_terms: bool,
    no_public_ip: bool,
    **asked: str | int | Path | None,
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

    A machine that died is replaced. A smaller count is refused: remove the cluster with `gpuctl down`.
    Without -f, --provider, --shape and --hosts, the project's gpuctl.yaml says what its cluster is to be. Other
    options win over it. Options marked (clouds) need a rented provider.
    """
    from gpuctl.command_line.job_file.command import file_with_cluster
    from gpuctl.library import functions
    from gpuctl.library.options import up_request

    named = file is None or _names_a_cluster(click.get_current_context())
    if not any((file, asked["provider"], asked["shape"], asked["hosts"], asked["context"])):
        file = file_with_cluster(app)
    request = up_request(
        app.options.cluster if named else None,
        {
            **asked,  # type: ignore[typeddict-item] # click's options have the names of UpOptions
            "file": file,
            "ttl": ttl,
            "max_cost": max_cost,
            "known_hosts": known_hosts,
            "accept_new_host_keys": accept_new_host_keys,
            "boot_timeout": boot_timeout,
            "wait": not no_wait,
            "spot": spot,
            "accept_terms": accept_terms,
            "public_ip": not no_public_ip,
        },
        default=app.options.cluster,
    )
    if dry_run:
        _show_plan(app, request)
        return
    document = functions.create(app, request)
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
        app.output.json(up_plan.document(planned, setup, asked=not unasked))
        return
    app.output.table(up_plan.drawn(planned, setup))
    if app.options.verbose:
        app.output.text(up_plan.requests_text(planned))


def _names_a_cluster(context: click.Context | None) -> bool:
    """Whether --cluster was given, before or after the command's name: then it wins over the spec file."""
    while context is not None:
        if context.params.get("cluster") is not None:
            return True
        context = context.parent
    return False
