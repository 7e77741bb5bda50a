"""What gpuctl and a cloud tell each other: a cluster, an offer, an instance, a resource. Plain data."""

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
    """Where in a cloud: whose account, which region. None: as the SDK's own configuration says."""

    provider: str
    region: str | None = None
    profile: str | None = None
    compartment: str | None = None
    """OCI: the compartment's OCID; None: the tenancy's root."""
    account: str | None = None
    """Whose it is, as the cloud says: AWS's account number, OCI's tenancy. Found out, never asked for."""


@dataclass(frozen=True, kw_only=True)
class BootImage:
    """The image that a cluster's first machines were made from, whoever chose it."""

    id: str
    name: str = ""
    """Empty: not known."""
    marketplace: bool = False
    """Whether it is a partner's, which can be launched also where it can't be looked at."""


@dataclass(frozen=True, kw_only=True)
class CloudCluster:
    """A cluster as it was asked for: on the disk before the first call, the same in every later command."""

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
    """As it was typed: a name, an id, an SSM parameter. None: the provider's newest fitting one."""
    driver: str | None = None
    """As it was typed: `auto`, `none` or a branch. None: auto."""
    disk_gb: int | None = None
    spot: bool = False
    ssh_cidr: str | None = None
    """As it was typed. None: the caller's own address."""
    ssh_cidrs: tuple[str, ...] = ()
    """From where SSH is let in now."""
    ssh_port: int = 22
    min_count: int | None = field(default=None, metadata=codec.OMITTED)
    """Machines that stay between runs. None: all."""
    max_count: int | None = field(default=None, metadata=codec.OMITTED)
    """The most that a run may start. None: runs start and end none."""
    first_count: int | None = field(default=None, metadata=codec.OMITTED)
    """Number of machines that the cluster began with. None: not recorded."""
    subnet_id: str | None = None
    """An existing subnet; None: the shared network of ours."""
    public_ip: bool = True
    bastion: str | None = None
    """Bastion for machines without a public address, `user@host[:port]`."""
    ttl_s: float | None = None
    """As it was asked for."""
    max_cost_usd: float | None = None
    """What it may cost within its time, all machines together."""
    expires_at: str | None = None
    """ISO 8601, UTC: when the machines end by themselves."""
    boots_from: BootImage | None = None
    """The image of the machines that are there: those that join boot from it as well. None: there are none."""


@dataclass(frozen=True, kw_only=True)
class Zone:
    """Somewhere that all machines of a launch can be: a zone (AWS) or availability domain (OCI)."""

    name: str = field(metadata=codec.key("zone"))
    fault_domain: str | None = None
    """OCI: one fault domain of it. None: whichever the cloud picks."""

    def __str__(self) -> str:
        return f"{self.name}/{self.fault_domain}" if self.fault_domain else self.name


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What has to be accepted before an image of a marketplace can be used."""

    name: str
    """Of the image, as its marketplace shows it."""
    links: tuple[str, ...]
    """Where the terms can be read."""


@dataclass(frozen=True, kw_only=True)
class PlannedRequest:
    """A request that would be sent, without secrets; ids that the cloud would give stand in <…>."""

    operation: str
    """As the cloud calls it: `LaunchInstance`."""
    body: Mapping[str, Any]
    """Plain JSON."""


GuardName = Literal["cloud schedule", "machine power-off", "scaling group", "idle"]
"""Names of the mechanisms that act when a cluster's time is over, with every computer of ours shut."""


@dataclass(frozen=True, kw_only=True)
class PlannedEnd:
    """A mechanism that acts on the machines when the cluster's time is over."""

    guard: GuardName
    at: str | None
    """Time at which it acts, ISO 8601, UTC. None: not known."""
    ends_bill: bool
    """Whether the cloud bills no machine after it."""


@dataclass(frozen=True, kw_only=True)
class EndGuard(PlannedEnd):
    """A mechanism of `PlannedEnd` with its state."""

    armed: bool | None
    """Whether it will act on all machines. None: not known."""
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
    """Something that a plan creates, uses as it is there already, or ends: one line for people."""

    action: ResourceAction
    kind: str
    """The field's word: `instance`, `boot-volume`, `vcn`, `subnet`, …"""
    name: str = ""
    """Empty where it has none, or where there are several."""
    id: str | None = None
    """None: it is not there yet, or there are several."""
    count: int = 1
    detail: str = ""
    """What it is, in a few words."""
    hourly_usd: float | None = 0.0
    """Price of all `count`, USD an hour; 0: free; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What `prepare`, `prepare_zone` and a launch would do."""

    requests: tuple[PlannedRequest, ...]
    resources: tuple[PlannedResource, ...]
    """All but the machines and their disks."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What the cloud says of a cluster before anything is made."""

    shape: str
    gpus: int
    image_id: str
    image_name: str
    image_why: str = ""
    """Why this one, in a clause: `as asked for`, or which better ones could not be had and why."""
    driver: DriverPlan = NO_DRIVER
    terms: Terms | None = None
    """Of the image, where nobody has accepted them yet for this account."""
    from_marketplace: bool = False
    image_there: bool = True
    """False: the image of the cluster's machines can't be found any more, so that none can join them."""
    boot_commands: tuple[str, ...] = ()
    """Shell commands that a machine of this image needs at its first boot, run as root."""
    user: str
    """Who logs in: `ubuntu`, `opc`."""
    disk_gb: int
    zones: tuple[Zone, ...]
    """In the order in which they are tried."""
    hourly_usd: float | None
    """Price of one machine. None: not known."""
    room: Mapping[str, int | None] = field(default_factory=dict)
    """GPUs that the account's limits leave, by zone. None: not known; empty: the cloud does not tell."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the cloud's own package wants to know of the shape, plain JSON."""
    network_hourly_usd: float = 0.0
    """What the cluster's network costs beside its machines, USD an hour by list price: shared by the clusters
    that need it, and billed until the last of them is removed, be there machines or none."""
    notes: tuple[str, ...] = ()
    """What a person should know before they say yes to new machines: what else costs money, what is lost."""


@dataclass(frozen=True, kw_only=True)
class Infrastructure:
    """What machines stand on, by id: network, firewall, key, placement. Keys are the package's own."""

    ids: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class NewMachine:
    """A machine about to be launched."""

    name: str
    rank: int
    user_data: str
    """cloud-init's text. The same for all machines of a launch where `Cloud.one_user_data`."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A machine as the cloud knows it now."""

    id: str
    tags: Mapping[str, str]
    rank: int | None
    """None: its tags don't tell."""
    state: InstanceState
    shape: str
    zone: Zone
    launched_at: str
    """ISO 8601, UTC."""
    public_ip: str | None = None
    private_ip: str | None = None
    reason: str | None = None
    """Why it ended, where the cloud says so."""
    spot: bool = False
    """Whether it was launched at the cloud's price of the hour, and may be taken away."""
    image_id: str | None = None
    """What it was booted from. None: the cloud does not tell."""

    @property
    def alive(self) -> bool:
        """Whether it is there to be used, now or soon."""
        return self.state not in ("ending", "ended")


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something of ours that is no instance: network, firewall, key, placement."""

    kind: str
    """The field's word: `vpc`, `subnet`, `security-group`, `nsg`, …"""
    id: str
    name: str
    tags: Mapping[str, str]
    stage: int
    """Parts of stage k can be removed once those of all smaller stages are gone."""
    ends_within_s: float = 0.0
    """How long the cloud may take over its end, where that is more than some seconds."""
    network: str | None = None
    """The id of the network that it is in. None: in none, or the cloud does not tell."""
    going: bool = False
    """Whether it is on its way out, or never came up: nothing can use it."""


def read_time(text: str | None) -> datetime | None:
    """Return an ISO 8601 time, in UTC if it names no other zone. None: the text is no time, as people edit tags."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
