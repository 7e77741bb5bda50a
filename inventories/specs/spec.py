"""What is asked for: the spec of a cluster."""

from dataclasses import dataclass
from pathlib import Path

from inventories.specs.setup_steps import SetupStep

DEFAULT_CLUSTER = "default"
LEAST_TTL_S = 600.0
"""Below that, machines end before they have booted."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a person asks `gpuctl up` for. Validated once, where it is read (`inventories.specs.validate`)."""

    cluster: str = DEFAULT_CLUSTER
    """Name of the cluster: 1 to 40 of a-z, 0-9 and `-`. Default: `default`."""
    provider: str | None = None
    """`local`, `hosts`, `oci`, `aws`, `eks`, `oke` or `kubernetes`.

    Default: inferred from `shape`, `hosts` or `context`.
    """
    shape: str | None = None
    """Machine shape, such as `VM.GPU.A10.2` (OCI) or `g5.12xlarge` (AWS)."""
    count: int | None = None
    """Number of machines. Default: 1, or as many as the cluster already has."""
    min_count: int | None = None
    """EKS, OKE: machines that stay between runs, such as 0. You must also give `max`. Default: all machines stay."""
    max_count: int | None = None
    """EKS, OKE: the most machines of a run. A run starts what it needs, and ends them down to `min` after it."""
    region: str | None = None
    """Region of the provider. Default: the one in the SDK's own configuration."""
    compartment: str | None = None
    """OCI: OCID of the compartment. Default: the root compartment."""
    profile: str | None = None
    """Profile in the SDK's own configuration file."""
    context: str | None = None
    """Kubernetes: context of the kubeconfig. Default: the current one."""
    image: str | None = None
    """Name or id of the image, an SSM parameter (AWS), or `marketplace:NAME` (OCI). Default: with a GPU driver.
    Kubernetes: the containers' image. Default: Ray's."""
    driver: str | None = None
    """NVIDIA driver: `auto`, `none`, or a release branch such as `580`. Default: `auto` for rented machines."""
    accept_terms: bool = False
    """The terms of a marketplace image are accepted without a question."""
    ask_terms: bool = False
    """They may be part of the plan, as a person will be asked about it. Set by `up`, never by a file."""
    disk_gb: int | None = None
    """Size of each boot volume, GB. Default: 200, or what the image needs."""
    spot: bool = False
    """Preemptible machines: cheaper, and may be taken away at any time. Default: false."""
    ssh_cidr: str | None = None
    """Addresses that may reach SSH, such as `203.0.113.7/32`. Default: this computer's own address."""
    ssh_port: int | None = None
    """Port on which the machines listen for SSH. Default: 22."""
    subnet_id: str | None = None
    """Id of an existing subnet. Default: a subnet in gpuctl's own network."""
    public_ip: bool = True
    """Whether machines get a public address. `false` puts them into a private subnet. Default: true."""
    bastion: str | None = None
    """Bastion through which the machines are reached: `user@host[:port]`, or an alias in `~/.ssh/config`."""
    ttl_s: float | None = None
    """Time after which the cloud ends the machines, `10m` or more, such as `4h` or `1h30m`. Default: never."""
    max_cost_usd: float | None = None
    """US dollars. Refuse a plan that could cost more before its `ttl` is over. You must also give `ttl`."""
    hosts: Path | None = None
    """Inventory of machines that exist already, for the provider `hosts`."""
    python: str | None = None
    """Absolute path of the Python to use on the machines. Nothing is installed into it."""
    setup: tuple[SetupStep, ...] | None = None
    """Steps that each new machine runs: shell lines, or tasks of a fabfile. Default: those of the last `up`. All
    steps run again after you change one, and on a machine where one failed: write steps that are safe to repeat."""
