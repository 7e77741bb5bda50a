"""`gpuctl up`: create the cluster's machines and prepare them."""

from dataclasses import replace
from pathlib import Path

import click

from gpuctl import completions
from gpuctl.options import App, common_options


@click.command()
@common_options
@click.option(
    "--provider",
    metavar="P",
    help="local, hosts, oci or aws (default: inferred from --shape or --hosts).",
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
@click.option("--region", metavar="R", help="Region of the provider. (clouds)")
@click.option("--compartment", metavar="OCID", help="Compartment of the machines. (oci)")
@click.option("--profile", metavar="NAME", help="Profile in the SDK's own configuration. (clouds)")
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
@click.option("--image", metavar="I", help="Image name or id. (clouds)")
@click.option(
    "--driver",
    metavar="auto|none|VERSION",
    help="NVIDIA driver. auto: the image's, or else an installed one (Ubuntu). VERSION: a branch such as 580. "
    "(clouds; hosts: only if given, and may reboot them)",
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
    "--bastion", metavar="USER@HOST[:PORT]", help="Reach the machines through this bastion. (clouds, hosts)"
)
@click.option(
    "--ttl", metavar="TIME", help="End the machines after this long, 10m or more, such as 4h. (clouds)"
)
@click.option("--max-cost", type=float, metavar="USD", help="Refuse a plan that would cost more.")
@click.option("--python", metavar="PATH", help="Use this interpreter on the machines as it is.")
@click.option(
    "--known-hosts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Host keys of --hosts machines (default: your known_hosts).",
)
@click.option("--accept-new-host-keys", is_flag=True, help="Pin the keys that unknown hosts show now.")
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
    gpuctl up --shape VM.GPU.A10.2 --count 2 --ttl 4h    rented, for at most four hours
    gpuctl up --count 3                        one more
    gpuctl up --count 3 --dry-run              show the plan and its price

    A machine that died is replaced. A smaller count is refused: remove the cluster with `gpuctl down`.
    Options marked (clouds) work with oci and aws only.
    """
    from gpuctl.errors import Usage
    from gpuctl.workflow.cluster import up
    from inventories.spec import Spec
    from inventories.validate import (
        check_max_cost_usd,
        check_option,
        check_ttl_s,
        parse_duration_s,
        read_spec,
    )
    from remote.transport.host_keys import USER_FILES

    spec = read_spec(file) if file is not None else Spec()
    given = {key: check_option(key, value) for key, value in asked.items() if value is not None}
    if ttl is not None:
        given["ttl_s"] = check_ttl_s(ttl)
    if max_cost is not None:
        given["max_cost_usd"] = check_max_cost_usd(max_cost)
    if file is None or _names_a_cluster(click.get_current_context()):
        given["cluster"] = app.options.cluster
    if spot:
        given["spot"] = True
    if accept_terms:
        given["accept_terms"] = True
    if no_public_ip:
        given["public_ip"] = False
    spec = replace(spec, **given)
    keys = up.HostKeys(files=(known_hosts,) if known_hosts else USER_FILES, accept_new=accept_new_host_keys)
    if no_wait and boot_timeout is not None:
        raise Usage("--no-wait does not wait for machines to boot: leave out --boot-timeout, or --no-wait.")
    boot_timeout_s = None if boot_timeout is None else parse_duration_s(boot_timeout)
    document = up.up(app, spec, keys, dry_run=dry_run, wait=not no_wait, boot_timeout_s=boot_timeout_s)
    if app.options.json:
        app.output.json(document)


def _names_a_cluster(context: click.Context | None) -> bool:
    """Whether --cluster was given, before or after the command's name: then it wins over the spec file."""
    while context is not None:
        if context.params.get("cluster") is not None:
            return True
        context = context.parent
    return False
