"""Results of commands on clusters: `up`, `status`, `clusters`, `cost`, `key`, `down`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from inventories import codec

if TYPE_CHECKING:
    from inventories.machine import MachineInfo, MachineState
    from inventories.runs.queue import QueueStatus
    from inventories.specs.gpu_driver import DriverPlan
    from inventories.specs.setup_steps import SetupStep
    from provision.pricing.plan_price import PlanPrice
    from provision.provider import Leftover, PlannedMachine
    from provision.records import EndGuard, PlannedEnd, PlannedRequest, PlannedResource, Terms
    from remote.checks.notices import Undelivered

ClusterState: TypeAlias = 'MachineState | Literal["partial", "unfinished"]'
"""`partial`: its machines are not all in one state. `unfinished`: its first `up` did not come to its end."""


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """A cluster and its machines."""

    cluster: str
    provider: str
    region: str | None
    machines: "tuple[MachineInfo, ...]"
    """By rank."""
    hourly_usd: float | None
    """List price of all machines together; 0 where nothing is billed."""


@dataclass(frozen=True, kw_only=True)
class UpResult(ClusterInfo):
    """The document of `up --json`: the cluster, new or as it was."""

    ends: "tuple[EndGuard, ...] | None" = field(default=None, metadata=codec.OMITTED)
    """Mechanisms that end the machines at the end of the cluster's time. `None`: no time limit, or not known."""
    setup: "tuple[SetUp, ...] | None" = field(default=None, metadata=codec.OMITTED)
    """What came of the setup on the machines that had yet to run it. `None`: the cluster has no setup."""
    seconds: float
    """That it took."""


@dataclass(frozen=True, kw_only=True)
class SetupPlan:
    """Setup steps that machines run once, before any run."""

    steps: "tuple[SetupStep, ...]" = ()
    machines: tuple[str, ...] = ()
    """Names of the machines without a finished setup."""


@dataclass(frozen=True, kw_only=True)
class SshAccess:
    """From where the machines' SSH servers can be reached."""

    cidrs: tuple[str, ...]
    port: int
    unknown: str | None
    """Why it is not known from where. `None`: it is."""


@dataclass(frozen=True, kw_only=True)
class UpPlan:
    """The document of `up --dry-run --json`: the plan."""

    cluster: str
    provider: str
    region: str | None
    account_asked: bool
    """False: the account can't be asked, so it is what would be made where nothing of gpuctl is yet."""
    create: "tuple[PlannedMachine, ...]"
    keep: "tuple[MachineInfo, ...]"
    end: tuple[str, ...]
    """Ids of machines left by an interrupted `up` and not replaced: they are removed first."""
    resources: "tuple[PlannedResource, ...]"
    image: str | None
    image_why: str
    driver: "DriverPlan | None"
    """`None`: not known without the account."""
    terms: "Terms | None"
    """The image's terms, which a yes accepts. `None`: no terms, or accepted before."""
    ssh: SshAccess | None
    hourly_usd: float | None
    price: "PlanPrice"
    run_hourly_usd: float | None
    """USD an hour while a run has all machines that it may start. `None`: runs start no machines, or not known."""
    until_s: float | None
    """Seconds until the end of the cluster's time. `None`: it has no time limit."""
    ending: str
    """Clause on that end, and on the bill after it."""
    ends: "tuple[PlannedEnd, ...]"
    """Mechanisms that act at the end of the cluster's time."""
    total_usd: float | None
    """Until then; where nothing ends them, of a day."""
    setup: SetupPlan = SetupPlan()
    notes: tuple[str, ...]
    requests: "tuple[PlannedRequest, ...]"


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """The result of the setup on a machine, as `up --json` shows it."""

    node: str
    status: Literal["done", "failed", "unknown"]
    """`unknown`: the connection was lost, or the time was over, while a line ran."""
    line: str | None
    """The one that did not end well."""
    error: str | None
    log: Path
    output: tuple[str, ...]
    """The end of what that line said."""

    def description(self) -> str:
        """Return a sentence on the failure, with the end of the output."""
        outcome = "failed" if self.status == "failed" else "has no known end"
        text = f"{self.node}: setup: `{self.line}` {outcome}: {self.error}"
        end = "; its output ends with:" if self.output else "."
        return "\n".join([f"{text} The log is {self.log}{end}", *(f"  {line}" for line in self.output)])


@dataclass(frozen=True, kw_only=True)
class IdleStatus:
    """The use of a cluster that ends after a time without it (`up --idle`)."""

    after_s: float
    """That time."""
    signals: Mapping[str, bool | None]
    """Signal (run, queue, login, gpu, cpu, transfer) → whether it shows use. `None`: not known: it counts as no use.
    """
    ends_at: str | None
    """End of the machines without further use, ISO 8601, UTC. `None`: not known."""
    kept_until: str | None
    """Time until which `gpuctl keep` puts the end off. `None`: it does not."""


@dataclass(frozen=True, kw_only=True)
class ClusterStatus(ClusterInfo):
    """The document of `status --json`: a cluster as its provider reports it now."""

    created_at: str
    """ISO 8601, UTC."""
    age_s: int
    expires_at: str | None
    """Time at which an armed mechanism ends the bill of its machines. `None`: nothing does, or it is not known."""
    ends: "tuple[EndGuard, ...] | None"
    """Mechanisms that act at the end of the cluster's time. `None`: not known."""
    idle: IdleStatus | None = field(default=None, metadata=codec.OMITTED)
    """Its use, if it ends after a time without use. `None`: it does not."""
    notices: "tuple[Undelivered, ...] | None" = field(default=None, metadata=codec.OMITTED)
    """Notifications that did not arrive. `None`: the cluster had no notifications, or it is not known."""
    queue: "QueueStatus | None" = field(default=None, metadata=codec.OMITTED)
    """Its queue of runs. `None`: nothing runs or waits in it, and it is not paused."""
    cost_usd: float | None
    """Since each machine was made, by list price."""
    runs: tuple[str, ...]
    """Ids of the runs that are not known to be over."""
    unheard: Mapping[str, tuple[str, ...]]
    """Run → its nodes that never said how it ended there, where no other says that it continues."""


@dataclass(frozen=True, kw_only=True)
class ClusterSummary:
    """An element of `clusters --json`. The cluster's provider may not have answered."""

    cluster: str
    provider: str | None
    region: str | None
    machines: "tuple[MachineInfo, ...] | None"
    hourly_usd: float | None
    created_at: str | None
    age_s: int | None
    expires_at: str | None
    ends: "tuple[EndGuard, ...] | None"
    cost_usd: float | None
    runs: tuple[str, ...]
    unheard: Mapping[str, tuple[str, ...]]
    state: "ClusterState"
    shape: str | None
    billed: bool | None
    """Whether its machines are rented."""
    problem: str | None
    """Why its state is not known. `None`: it is."""


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The cost of a run, by list price: a part of its cluster's."""

    run: str
    cluster: str
    usd: float | None
    """`None`: not known, as of a run that is not over."""


@dataclass(frozen=True, kw_only=True)
class ClusterCost:
    """The cost of a cluster by list price, an element of `cost --json`."""

    cluster: str
    id: str
    provider: str
    region: str | None
    usd: float | None
    """As far as it is known. `None`: not known at all."""
    from_: str
    """ISO 8601, UTC: begin of its machines, or of the asked time."""
    to: str | None
    """End of its bill. `None`: it exists, or may."""
    unknown: str | None
    """Gaps in the knowledge of its cost, in sentences. `None`: no gap."""
    runs: tuple[RunCost, ...]


@dataclass(frozen=True, kw_only=True)
class DayCost:
    """The cost of all clusters on a day (UTC)."""

    day: str
    usd: float


@dataclass(frozen=True, kw_only=True)
class CostResult:
    """The document of `cost --json`."""

    since: str
    clusters: tuple[ClusterCost, ...]
    days: tuple[DayCost, ...]
    usd: float | None
    """Of all clusters, as far as it is known. `None`: that of no cluster is."""
    complete: bool
    """False: the sum and the days are the least, as a price or a place is not known."""
    unknown: tuple[str, ...]
    """Sentences on places that did not answer: they may have more clusters."""


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """The document of `key --json`."""

    cluster: str
    file: Path
    """The encrypted file that was written or read."""


@dataclass(frozen=True, kw_only=True)
class LeftOnNode:
    """Data that stays on the disk of a machine that its owner keeps."""

    node: str
    bytes: Mapping[str, int] | None
    """Kind → its size. `None`: the machine did not answer."""


@dataclass(frozen=True, kw_only=True)
class DownResult:
    """The document of `down --json`: removed resources, and resources that could not be removed."""

    cluster: str
    removed: tuple[str, ...]
    """Names of machines."""
    leftovers: "tuple[Leftover, ...]"
    left_on_nodes: tuple[LeftOnNode, ...]
    cost_usd: float | None
    """Of its machines, by list price."""
    seconds: float
