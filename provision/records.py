"""Records of a cluster, an offer, an instance, a resource: the data between gpuctl and a cloud."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from inventories import codec
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan

InstanceState = Literal["pending", "running", "stopping", "stopped", "ending", "ended"]
"""`ending` still costs money and still counts; `ended` instances stay listed for hours."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Account and region of a cloud. `None`: the SDK's own configuration decides."""

    provider: str
    region: str | None = None
    profile: str | None = None
    compartment: str | None = None
    """OCI: the compartment's OCID; `None`: the tenancy's root."""
    account: str | None = None
    """The account's id by the cloud: AWS's account number, OCI's tenancy. Never an option."""


@dataclass(frozen=True, kw_only=True)
class BootImage:
    """The image of a cluster's first machines."""

    id: str
    name: str = ""
    """Empty: not known."""
    marketplace: bool = False
    """Whether it is a partner's, which may be launched without permission to read it."""


@dataclass(frozen=True, kw_only=True)
class CloudCluster:
    """A requested cluster: on the disk before the first call, the same in every later command."""

    name: str
    id: str
    """Random; the value of the tag `gpuctl-cluster-id`."""
    owner: str
    created_at: str
    """ISO 8601, UTC."""
    target: Target
    """Its region is set."""
    shape: str
    image: str | None = None
    """The option's value: a name, an id, an SSM parameter. `None`: the provider's newest fitting image."""
    driver: str | None = None
    """The option's value: `auto`, `none` or a branch. `None`: auto."""
    disk_gb: int | None = None
    spot: bool = False
    python: str | None = field(default=None, metadata=codec.OMITTED)
    """Interpreter of the machines to use as it is. `None`: their `python3`."""
    ssh_cidr: str | None = None
    """The option's value. `None`: the caller's own address."""
    ssh_cidrs: tuple[str, ...] = ()
    """Address ranges that reach SSH now."""
    ssh_port: int = 22
    min_count: int | None = field(default=None, metadata=codec.OMITTED)
    """Machines that stay between runs. `None`: all."""
    max_count: int | None = field(default=None, metadata=codec.OMITTED)
    """Most machines that a run may start. `None`: runs start and end no machines."""
    first_count: int | None = field(default=None, metadata=codec.OMITTED)
    """First number of machines. `None`: not recorded."""
    subnet_id: str | None = None
    """An existing subnet. `None`: our shared network."""
    public_ip: bool = True
    bastion: str | None = None
    """Bastion for machines without a public address, `user@host[:port]`."""
    ttl_s: float | None = None
    """The option's value."""
    idle_s: float | None = field(default=None, metadata=codec.OMITTED)
    """The option's value: time without use after which the machines end."""
    max_cost_usd: float | None = None
    """Limit of the cost of all machines together within the cluster's time."""
    expires_at: str | None = None
    """End of the machines, ISO 8601, UTC."""
    boots_from: BootImage | None = None
    """The image of the existing machines, from which new ones boot as well. `None`: no machines."""

    @property
    def kubernetes_name(self) -> str:
        """Name of the Kubernetes cluster, if machines are its nodes. Names on OCI need not be unique."""
        return f"gpuctl-{self.name}-{self.id}"


@dataclass(frozen=True, kw_only=True)
class Zone:
    """A place for all machines of a launch: a zone (AWS) or availability domain (OCI)."""

    name: str = field(metadata=codec.key("zone"))
    fault_domain: str | None = None
    """OCI: a fault domain of the zone. `None`: the cloud picks."""

    def __str__(self) -> str:
        return f"{self.name}/{self.fault_domain}" if self.fault_domain else self.name


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms that must be accepted before an image of a marketplace can be used."""

    name: str
    """The marketplace's name of the image."""
    links: tuple[str, ...]
    """Addresses of the terms."""


@dataclass(frozen=True, kw_only=True)
class PlannedRequest:
    """A request that would be sent, without secrets; ids that the cloud would give are in <…>."""

    operation: str
    """The cloud's name of the operation: `LaunchInstance`."""
    body: Mapping[str, Any]
    """Plain JSON."""


GuardName = Literal["cloud schedule", "machine power-off", "scaling group", "idle"]
"""Names of the mechanisms that act when a cluster's time is over, with every computer of ours shut."""


@dataclass(frozen=True, kw_only=True)
class PlannedEnd:
    """A mechanism that acts on the machines when the cluster's time is over."""

    guard: GuardName
    at: str | None
    """Time at which it acts, ISO 8601, UTC. `None`: not known."""
    ends_bill: bool
    """Whether the cloud bills no machine after it."""


@dataclass(frozen=True, kw_only=True)
class EndGuard(PlannedEnd):
    """A mechanism of `PlannedEnd` with its state."""

    armed: bool | None
    """Whether it will act on all machines. `None`: not known."""
    problem: str = ""
    """Reason why it is not armed, or why its state is not known. Empty: it is armed."""


@dataclass(frozen=True, kw_only=True)
class ScheduledEnd:
    """A schedule of the cloud that terminates machines."""

    at: str
    """Time at which it acts, ISO 8601, UTC."""
    machines: frozenset[str]
    """Ids of the machines that it terminates."""
    problem: str = ""
    """Reason why it may not act in time, as a clause. Empty: it acts."""


ResourceAction = Literal["create", "use", "end"]


@dataclass(frozen=True, kw_only=True)
class PlannedResource:
    """A resource that a plan creates, uses, or ends: one line for people."""

    action: ResourceAction
    kind: str
    """The cloud's word: `instance`, `boot-volume`, `vcn`, `subnet`, …"""
    name: str = ""
    """Empty: without a name, or several resources."""
    id: str | None = None
    """`None`: not created yet, or several resources."""
    count: int = 1
    detail: str = ""
    """Description in a few words."""
    hourly_usd: float | None = 0.0
    """Price of all `count`, USD an hour; 0: free; `None`: not known."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The effects of `prepare`, `prepare_zone` and a launch."""

    requests: tuple[PlannedRequest, ...]
    resources: tuple[PlannedResource, ...]
    """All except the machines and their disks."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A cloud's answer to a requested cluster, before its creation."""

    shape: str
    gpus: int
    image_id: str
    image_name: str
    image_why: str = ""
    """Reason for this image, in a clause: `as asked for`, or the better images that could not be used, and why."""
    driver: DriverPlan = NO_DRIVER
    terms: Terms | None = None
    """The image's terms, if this account has not accepted them yet."""
    from_marketplace: bool = False
    image_there: bool = True
    """False: the image of the cluster's machines can't be found any more, so no machine can join them."""
    boot_commands: tuple[str, ...] = ()
    """Shell commands that a machine of this image needs at its first boot, run as root."""
    user: str
    """Login: `ubuntu`, `opc`."""
    disk_gb: int
    zones: tuple[Zone, ...]
    """Zones in the order of the attempts."""
    hourly_usd: float | None
    """Price of one machine. `None`: not known."""
    room: Mapping[str, int | None] = field(default_factory=dict)
    """GPUs that the account's limits leave, by zone. `None`: not known; empty: the cloud has no such list."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts on the shape for the cloud's own package, plain JSON."""
    network_hourly_usd: float = 0.0
    """Price of the network without machines, USD an hour by list price: shared by the clusters that need it, and
    billed until the last of these is removed, with or without machines."""
    notes: tuple[str, ...] = ()
    """Notes for users before they confirm new machines: other costs, losses."""


@dataclass(frozen=True, kw_only=True)
class Infrastructure:
    """Ids of the network, firewall, key and placement of machines. Keys are the package's own."""

    ids: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class NewMachine:
    """A machine of a new launch."""

    name: str
    rank: int
    user_data: str
    """cloud-init's text. The same for all machines of a launch if `Cloud.one_user_data`."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A machine in the cloud's list."""

    id: str
    tags: Mapping[str, str]
    rank: int | None
    """`None`: not in its tags."""
    state: InstanceState
    shape: str
    zone: Zone
    launched_at: str
    """ISO 8601, UTC."""
    public_ip: str | None = None
    private_ip: str | None = None
    reason: str | None = None
    """The cloud's reason for its end."""
    spot: bool = False
    """Whether it was launched at the spot price, and the cloud may reclaim it."""
    image_id: str | None = None
    """Its boot image. `None`: not known."""

    @property
    def alive(self) -> bool:
        """Return whether it can be used, now or soon."""
        return self.state not in ("ending", "ended")


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource of ours that is no instance: network, firewall, key, placement."""

    kind: str
    """The cloud's word: `vpc`, `subnet`, `security-group`, `nsg`, …"""
    id: str
    name: str
    tags: Mapping[str, str]
    stage: int
    """Resources of stage k can be removed after all of smaller stages."""
    ends_within_s: float = 0.0
    """Time that the cloud may take to delete it, if longer than some seconds."""
    network: str | None = None
    """Id of its network. `None`: in no network, or not known."""
    deleting: bool = False
    """Whether it is being deleted, or never came up, so that nothing can use it."""


def read_time(text: str | None) -> datetime | None:
    """Return an ISO 8601 time, in UTC if it names no other zone. `None`: the text is no time, as people edit tags."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
