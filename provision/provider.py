"""The protocol of a provider, the only interface between a cloud and the rest of gpuctl."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from inventories.disk.journal import Journal
from inventories.machine import Inventory, Machine
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan
from inventories.specs.spec import Spec
from provision.findings import Finding
from provision.pricing.plan_price import FREE, PlanPrice
from provision.records import EndGuard, PlannedEnd, PlannedRequest, PlannedResource, Target, Terms
from provision.waiting import Say, quiet

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class PlannedMachine:
    """A machine that `create` will make."""

    name: str
    rank: int
    shape: str | None = None
    replaces: str | None = None
    """The id of a dead machine that it replaces."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps of `create`: printed by `up --dry-run`, confirmed, and then executed unchanged."""

    spec: Spec
    provider: str
    region: str | None = None
    account: str | None = None
    """The account's id by the cloud. `None`: no account, or not known."""
    create: tuple[PlannedMachine, ...]
    keep: tuple[Machine, ...]
    """Existing machines that stay; their `python` is the spec's if that names one."""
    end: tuple[str, ...] = ()
    """Ids of machines that `create` removes first: of an interrupted command, or without a run that needs them."""
    makes_control_plane: bool = False
    """Whether a control plane of Kubernetes is made, which is billed also without machines."""
    price: PlanPrice = FREE
    """Price of all machines, kept and new, and of all other resources that are billed by the hour."""
    free: bool
    """True: no part can cost money, so no confirmation is needed."""
    requests: tuple[PlannedRequest, ...]
    """The exact steps: requests to a cloud, processes that are started or ended."""
    resources: tuple[PlannedResource, ...] = ()
    """Resources that are created, used as they are, or ended."""
    ssh_cidrs: tuple[str, ...] = ()
    """Address ranges that reach SSH. Empty: the provider does not control it."""
    ssh_port: int = 22
    ssh_unknown: str = ""
    """Reason why the address in `ssh_cidrs` is not known, so that `create` refuses. Empty: it is known."""
    until_s: float | None = None
    """Seconds until the end of the machines. `None`: no end."""
    ending: str = ""
    """Clause on the end of the cluster's time, and on the bill after it. Empty: no time limit."""
    ends: tuple[PlannedEnd, ...] = ()
    """Mechanisms that act at the end of the cluster's time."""
    idle: str = ""
    """Clause on the end after a time without use, and on the bill. Empty: the cluster has no `--idle`."""
    ttl_ends_bill: bool = True
    """Whether such a mechanism would end the bill of the machines, given a time limit."""
    least_billed_s: float = 0.0
    """Shortest time that the machines are billed for."""
    run_hourly_usd: float | None = None
    """USD an hour while a run has all machines that it may start. `None`: not known, or runs start no machines."""
    notes: tuple[str, ...] = ()
    """Notes for users before they confirm the plan."""
    image: str | None = None
    """The cloud's name of the image that new machines boot from. `None`: the provider has no images."""
    image_why: str = ""
    """Reason for this image, in a clause."""
    driver: DriverPlan | None = NO_DRIVER
    """`None`: the image decides, and the account could not be read."""
    terms: Terms | None = None
    """Terms that are accepted with the plan. `create` takes `spec.accept_terms` for a yes."""
    details: Any = None
    """Further data that the provider needs to execute the plan."""

    @property
    def hourly_usd(self) -> float | None:
        """Return the hourly price of machines, disks, addresses and network. 0: free; `None`: not known."""
        return self.price.hourly_usd

    @property
    def total_usd(self) -> float | None:
        """Return the cost until the machines end, or of a day without an end. `None`: not known."""
        return self.cost_usd(DAY_S if self.until_s is None else self.until_s)

    def cost_usd(self, seconds: float) -> float | None:
        """Return the cost in that time, or in the shortest billed time."""
        hourly_usd = self.price.hourly_usd
        return None if hourly_usd is None else round(hourly_usd * max(seconds, self.least_billed_s) / 3600, 4)

    @property
    def ends_unused(self) -> bool:
        """Return whether a time without use ends the machines and their bill."""
        return any(end.guard == "idle" and end.ends_bill for end in self.ends)

    @property
    def changes(self) -> bool:
        """Return whether machines or a control plane are made or ended. Kept machines may be new to the inventory."""
        return bool(self.create or self.end or self.makes_control_plane)


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A resource that `destroy` could not remove."""

    kind: str
    """`process`, `instance`, `subnet`, …"""
    id: str
    reason: str


class Provider(Protocol):
    """Machines of one kind, for one cluster.

    Every method may be called at any time, also after a crash in the middle of another one.
    """

    name: str
    billed: bool
    """False: machines of this provider never cost money."""
    ends_machines: bool
    """Whether a machine that leaves the cluster ends, as opposed to one that may still run."""

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """Compare the spec with the current cluster. Read-only.

        Raises RefusedPlan if `create` could not get from `current` to `spec`.
        """

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """Make the machines of `plan.create`. A failed attempt is rolled back before its error is raised.

        Each id is journaled before it is waited for. Blocks until the provider calls the machines running, with or
        without SSH. Returns all machines of the cluster, kept and new, by rank. Raises TermsRefused before the first
        request if a new plan would have another image.
        """

    def find(self) -> tuple[Machine, ...]:
        """Return the cluster's machines from the provider's own records, without our inventory."""

    def refresh(self, machine: Machine) -> Machine:
        """Return the machine with its real state, after one request without a wait."""

    def console(self, machine: Machine) -> str | None:
        """Return the end of the machine's serial console, at most 64 kB of printable lines.

        `None`: the provider has no consoles, or this one has no output yet. Takes a minute or so at most. Raises
        ProvisionError if the provider does not give it out.
        """

    def check(self, spec: Spec) -> tuple[Finding, ...]:
        """Return the reasons for which `up` would fail. Read-only."""

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """Remove all machines and resources of the cluster, in dependency order, polling to a deadline.

        Idempotent: a removed cluster is no error. Returns the resources that are left, with the reasons.
        """


@runtime_checkable
class AdoptingProvider(Protocol):
    """A provider whose clusters another computer can take over."""

    def adopt(self, target: Target, cluster_id: str, say: Say = quiet) -> None:
        """Rebuild the cluster's files, but for the inventory, and let this computer reach the machines.

        Idempotent; existing files, which are of the same cluster, stay. Raises RefusedPlan for a cluster that can't
        be taken over.
        """

    def admit_key(self, machine: Machine) -> str:
        """Have the machine accept the cluster's key of this computer, for a minute at least.

        Returns a clause on the parts of the machine without which it does not. Raises CloudError.
        """


@runtime_checkable
class OutliningProvider(Protocol):
    """A provider that can plan without an account."""

    def outline(self, spec: Spec) -> Plan:
        """Return the plan for an unknown account, as if it had no resource of ours."""


@runtime_checkable
class EndingProvider(Protocol):
    """A provider whose machines can end at a time, without a computer of ours."""

    def ends(self) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the cluster's machines, as the cloud describes them now.

        Empty: the cluster has no time limit, or no machines. Read-only. The state of timers on the machines is not
        known here (`armed` is `None`).
        """
