"""What is asked for: the spec of a cluster."""

from dataclasses import dataclass
from pathlib import Path

from inventories.setup import SetupStep

DEFAULT_CLUSTER = "default"
LEAST_TTL_S = 600.0
"""Below that, machines end before they have booted."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a person asks `gpuctl up` for. Validated once, where it is read (`inventories.validate`)."""

    cluster: str = DEFAULT_CLUSTER
    provider: str | None = None
    """None: inferred from `shape` or `hosts`."""
    shape: str | None = None
    count: int | None = None
    """Machines. None: one, or as many as the cluster already has."""
    region: str | None = None
    compartment: str | None = None
    """OCI: the compartment's OCID."""
    profile: str | None = None
    """Which of the accounts in the SDK's own configuration file."""
    image: str | None = None
    driver: str | None = None
    """`auto`, `none`, or a branch of NVIDIA's driver such as `580`. None: auto, where machines are rented."""
    accept_terms: bool = False
    """The terms of a marketplace image are accepted without a question."""
    ask_terms: bool = False
    """They may be part of the plan, as a person will be asked about it. Set by `up`, never by a file."""
    disk_gb: int | None = None
    spot: bool = False
    ssh_cidr: str | None = None
    ssh_port: int | None = None
    """None: 22."""
    subnet_id: str | None = None
    """An existing subnet. None: one of gpuctl's own network."""
    public_ip: bool = True
    bastion: str | None = None
    """Jump host over which the machines are reached, as `inventories.jump` reads it."""
    ttl_s: float | None = None
    max_cost_usd: float | None = None
    hosts: Path | None = None
    """Inventory file of machines that exist already (provider `hosts`)."""
    python: str | None = None
    """Interpreter to use on the machines as it is, an absolute path there."""
    setup: tuple[SetupStep, ...] | None = None
    """What each new machine runs once. None: what an earlier `up` of the cluster had."""
