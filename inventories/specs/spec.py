"""The spec of a cluster, which a person requests."""

from dataclasses import dataclass
from pathlib import Path

from inventories.option import option
from inventories.specs import checks
from inventories.specs.gpu_driver import check_driver
from inventories.specs.setup_steps import SetupStep

DEFAULT_CLUSTER = "default"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Spec:
    """The request of `gpuctl up`. Each value is checked once, by the `read` of its declaration."""

    cluster: str = option(
        default=DEFAULT_CLUSTER, key="cluster", read=checks.check_cluster_name,
        meaning="Name of the cluster: 1 to 40 of a-z, 0-9 and `-`. Default: `default`.",
    )
    provider: str | None = option(
        "--provider", key="provider", read=checks.check_text, metavar="P", completes="providers",
        help="local, hosts, oci, aws, eks, oke or kubernetes (default: inferred from --shape, --hosts or --context).",
        meaning="`local`, `hosts`, `oci`, `aws`, `eks`, `oke` or `kubernetes`. Default: inferred from `shape`, "
        "`hosts` or `context`.",
    )
    shape: str | None = option(
        "--shape", key="shape", read=checks.check_text, metavar="S", completes="shapes",
        providers="clouds eks oke kubernetes local",
        help="Machine shape, such as VM.GPU.A10.2 (OCI) or g5.12xlarge (AWS).",
        meaning="Machine shape, such as `VM.GPU.A10.2` (OCI) or `g5.12xlarge` (AWS).",
    )
    count: int | None = option(
        "--count", key="count", read=checks.check_count, metavar="N",
        help="Number of machines (default: as many as there are, or 1).",
        meaning="Number of machines. Default: 1, or as many as the cluster already has.",
    )
    min_count: int | None = option(
        "--min", keyword="min", key="min", read=checks.check_min_count, metavar="N", providers="eks oke",
        help="Machines that stay between runs, such as 0; needs --max. (eks, oke)",
        meaning="EKS, OKE: machines that stay between runs, such as 0. You must also give `max`. Default: all "
        "machines stay.",
    )
    max_count: int | None = option(
        "--max", keyword="max", key="max", read=checks.check_count, metavar="N", providers="eks oke",
        help="The most machines of a run: it starts those that it needs, and ends them after it. (eks, oke)",
        meaning="EKS, OKE: the most machines of a run. A run starts what it needs, and ends them down to `min` after "
        "it.",
    )
    region: str | None = option(
        "--region", key="region", read=checks.check_text, metavar="R", providers="clouds eks oke",
        help="Region of the provider. (clouds)",
        meaning="Region of the provider. Default: the one in the SDK's own configuration.",
    )
    compartment: str | None = option(
        "--compartment", key="compartment", read=checks.check_word, metavar="OCID", providers="clouds oke",
        help="Compartment of the machines. (oci)",
        meaning="OCI: OCID of the compartment. Default: the root compartment.",
    )
    profile: str | None = option(
        "--profile", key="profile", read=checks.check_text, metavar="NAME", providers="clouds eks oke",
        help="Profile in the SDK's own configuration. (clouds)",
        meaning="Profile in the SDK's own configuration file.",
    )
    context: str | None = option(
        "--context", key="context", read=checks.check_text, metavar="NAME", providers="kubernetes",
        help="Context of the kubeconfig (default: the current one). (kubernetes)",
        meaning="Kubernetes: context of the kubeconfig. Default: the current one.",
    )
    image: str | None = option(
        "--image", key="image", read=checks.check_text, metavar="I", providers="clouds eks oke kubernetes",
        help="Image name or id; on kubernetes of the containers. (clouds, kubernetes)",
        meaning="Name or id of the image, an SSM parameter (AWS), or `marketplace:NAME` (OCI). Default: with a GPU "
        "driver. Kubernetes: the containers' image. Default: Ray's.",
    )
    driver: str | None = option(
        "--driver", key="driver", read=check_driver, metavar="auto|none|VERSION", providers="clouds hosts",
        help="NVIDIA driver. auto: the image's, or else an installed one (Ubuntu). VERSION: a release branch, such "
        "as 580. (clouds; hosts: only if given, and may reboot them)",
        meaning="NVIDIA driver: `auto`, `none`, or a release branch such as `580`. Default: `auto` for rented "
        "machines.",
    )
    accept_terms: bool = option(
        "--accept-terms", default=False, providers="clouds", help="Accept the terms of a marketplace image. (oci)",
    )
    ask_terms: bool = False
    """Whether the plan may have terms, as a person will be asked about them. Set by `up`, never by a file."""
    disk_gb: int | None = option(
        "--disk-gb", key="disk_gb", read=checks.check_disk_gb, metavar="G", providers="clouds eks oke",
        help="Size of each boot volume, GB. (clouds)",
        meaning="Size of each boot volume, GB. Default: 200, or what the image needs.",
    )
    spot: bool = option(
        "--spot", default=False, key="spot", read=checks.check_flag, providers="clouds eks oke",
        help="Rent spot machines, which may be taken away. (clouds)",
        meaning="Preemptible machines: cheaper, and may be taken away at any time. Default: false.",
    )
    ssh_cidr: str | None = option(
        "--ssh-cidr", key="ssh_cidr", read=checks.check_cidr, metavar="CIDR", providers="clouds eks oke",
        help="Addresses that may reach SSH, such as 203.0.113.7/32. (clouds)",
        meaning="Addresses that may reach SSH, such as `203.0.113.7/32`. Default: this computer's own address.",
    )
    subnet_id: str | None = option(
        "--subnet-id", key="network.subnet_id", read=checks.check_word, metavar="ID", providers="clouds",
        help="Use an existing subnet (default: gpuctl's own network). (clouds)",
        meaning="Id of an existing subnet. Default: a subnet in gpuctl's own network.",
    )
    public_ip: bool = option(
        "--no-public-ip", default=True, key="network.public_ip", read=checks.check_flag, providers="clouds eks",
        help="Put the machines into a private subnet with a NAT gateway. (clouds)",
        meaning="Whether machines get a public address. `false` puts them into a private subnet. Default: true.",
    )
    bastion: str | None = option(
        "--bastion", key="network.bastion", read=checks.check_bastion, metavar="USER@HOST[:PORT]",
        providers="clouds hosts",
        help="Reach the machines through this bastion; it may be an alias in ~/.ssh/config. (clouds, hosts)",
        meaning="Bastion through which the machines are reached: `user@host[:port]`, or an alias in `~/.ssh/config`.",
    )
    ssh_port: int | None = option(
        key="network.ssh_port", read=checks.check_port, providers="clouds",
        meaning="Port on which the machines listen for SSH. Default: 22.",
    )
    ttl_s: float | None = option(
        "--ttl", keyword="ttl", key="ttl", read=checks.check_ttl_s, kind=str, annotation="str | None",
        metavar="TIME|none", providers="clouds eks oke",
        help="End the machines and their bill after this long, 10m or more, such as 4h. (clouds)",
        meaning="Time after which the cloud ends the machines, `10m` or more, such as `4h` or `1h30m`. Default: "
        "never.",
    )
    idle_s: float | None = option(
        "--idle", keyword="idle", key="idle", read=checks.check_idle_s, kind=str, annotation="str | None",
        metavar="TIME|none", providers="clouds",
        help="End the machines after this long without use (a run, a waiting entry of the queue, a login, busy GPUs "
        "or CPUs, a transfer), 10m or more, such as 30m. On OCI `gpuctl reap --idle` ends them. (clouds)",
        meaning="Time without use after which the machines end, `10m` or more, such as `30m`. Use is a run, a "
        "waiting entry of the queue, a login, busy GPUs or CPUs, or a transfer. Default: never.",
    )
    max_cost_usd: float | None = option(
        "--max-cost", keyword="max_cost", key="max_cost_usd", read=checks.check_max_cost_usd, metavar="USD",
        help="Refuse a plan that could cost more before its --ttl is over. You must also give --ttl.",
        meaning="US dollars. Refuse a plan that could cost more before its `ttl` is over. You must also give `ttl`.",
    )
    notify: tuple[str, ...] = option(
        "--notify", default=(), key="notify", read=checks.check_texts, metavar="TARGET",
        help="Send a message when the machines are up, could not be made, or end soon: to ntfy:TOPIC, slack:WEBHOOK, "
        "mail:ADDRESS, command:LINE, a URL, or each line of @FILE. Repeatable.",
        meaning="Targets of notifications: when the machines are up, could not be made, or end soon. Default: none.",
    )
    hosts: Path | None = option(
        "--hosts", key="hosts", read=checks.check_path, metavar="FILE", providers="hosts", after="context",
        help="Inventory file of machines that you have.",
        meaning="Inventory of machines that exist already, for the provider `hosts`.",
    )
    python: str | None = option(
        "--python", key="python", read=checks.check_python, metavar="PATH",
        help="Use this Python on the machines, and install nothing.",
        meaning="Absolute path of the Python to use on the machines. Nothing is installed into it.",
    )
    setup: tuple[SetupStep, ...] | None = option(
        key="setup",
        meaning="Steps that each new machine runs: shell lines, or tasks of a fabfile. Default: those of the last "
        "`up`. All steps run again after you change one, and on a machine where one failed: write steps that are "
        "safe to repeat.",
    )
