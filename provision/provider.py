"""The protocol of a provider: the only thing that the rest of gpuctl knows about a cloud."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from inventories.disk.store import Journal
from inventories.machine import Inventory, Machine
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan
from inventories.specs.spec import Spec
from provision.findings import Finding
from provision.pricing.plan_price import FREE, PlanPrice
from provision.records import EndGuard, PlannedEnd, PlannedRequest, PlannedResource, Terms
from provision.waiting import Say, quiet

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class PlannedMachine:
    """A machine that `create` will make."""

    name: str
    rank: int
    shape: str | None = None
    replaces: str | None = None
    """The id of the dead machine whose place it takes."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `create` will do: printed by `up --dry-run`, asked about, and then executed as it is."""

    spec: Spec
    provider: str
    region: str | None = None
    create: tuple[PlannedMachine, ...]
    keep: tuple[Machine, ...]
    """Machines that are there already and stay; their `python` is the spec's where that names one."""
    end: tuple[str, ...] = ()
    """Ids of machines that `create` removes first: an interrupted one left them, or no run needs them any more."""
    makes_control_plane: bool = False
    """Whether a control plane of Kubernetes is made, which is billed also without machines."""
    price: PlanPrice = FREE
    """Of all machines, kept and new, with all that is billed by the hour beside them."""
    free: bool
    """True: nothing of it can cost money, so nobody needs to be asked."""
    requests: tuple[PlannedRequest, ...]
    """What will be done, exact: requests to a cloud, processes that are started or ended."""
    resources: tuple[PlannedResource, ...] = ()
    """What is created, what is there and used, what is ended."""
    ssh_cidrs: tuple[str, ...] = ()
    """From where SSH is let in; empty where that is not the provider's business."""
    ssh_port: int = 22
    ssh_unknown: str = ""
    """Why the address in `ssh_cidrs` is not known, in a clause: then `create` refuses. Empty: it is known."""
    until_s: float | None = None
    """In how long the machines end by themselves. None: nothing ends them."""
    ending: str = ""
    """Clause on the end of the cluster's time, and on the bill after it. Empty: no time limit."""
    ends: tuple[PlannedEnd, ...] = ()
    """Mechanisms that act at the end of the cluster's time."""
    ttl_ends_bill: bool = True
    """Whether one of them would end the bill of the machines, given a time limit."""
    least_billed_s: float = 0.0
    """Shortest time that the machines are billed for."""
    run_hourly_usd: float | None = None
    """USD an hour while a run has all machines that it may start. None: runs start none, or it is not known."""
    notes: tuple[str, ...] = ()
    """What a person should know before they say yes to it."""
    image: str | None = None
    """Name of the image that new machines boot from, as the cloud has it. None: the provider has no images."""
    image_why: str = ""
    """Why this one, in a clause."""
    driver: DriverPlan | None = NO_DRIVER
    """None: it depends on the image, and the account could not be asked for that."""
    terms: Terms | None = None
    """What a yes to the plan accepts beside its price. `create` takes `spec.accept_terms` for that yes."""
    details: Any = None
    """What the provider itself needs beside this to carry the plan out."""

    @property
    def hourly_usd(self) -> float | None:
        """All that is billed by the hour: machines, disks, addresses, network. 0: free; None: not known."""
        return self.price.hourly_usd

    @property
    def total_usd(self) -> float | None:
        """What it costs until the machines end, or in a day where nothing ends them. None: not known."""
        return self.cost_usd(DAY_S if self.until_s is None else self.until_s)

    def cost_usd(self, seconds: float) -> float | None:
        """Return what it costs in that time, or in the shortest time that is billed."""
        hourly_usd = self.price.hourly_usd
        return None if hourly_usd is None else round(hourly_usd * max(seconds, self.least_billed_s) / 3600, 4)

    @property
    def changes(self) -> bool:
        """Whether anything is made or ended. A kept machine may still be new to the inventory."""
        return bool(self.create or self.end or self.makes_control_plane)


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something that `destroy` could not remove."""

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
    """Whether a machine that leaves the cluster is no more, or may be at work still."""

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """Compare what is asked for with what there is. Read-only.

        Raises RefusedPlan where `create` could not get from `current` to `spec`.
        """

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """Make all of `plan.create`, or none: what was begun is rolled back before an error is raised.

        Each id is journaled before it is waited for. Returns all machines of the cluster, kept and new,
        by rank. Blocks until the provider calls them running; whether SSH answers is not its business.
        Raises TermsRefused where a new plan would have another image, before anything is made.
        """

    def find(self) -> tuple[Machine, ...]:
        """The cluster's machines as the provider itself knows them, whatever our inventory says."""

    def refresh(self, machine: Machine) -> Machine:
        """The machine with its real state. Never waits: one question to the provider."""

    def console(self, machine: Machine) -> str | None:
        """The end of the machine's serial console, at most 64 kB of printable lines.

        None: the provider has no consoles, or this one shows nothing yet. Takes a minute or so at most.
        Raises ProvisionError where the provider does not give it out.
        """

    def check(self, spec: Spec) -> tuple[Finding, ...]:
        """Look for what would make `up` fail; empty: nothing can. Read-only."""

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """Remove everything of the cluster, in dependency order, polling to a deadline.

        Idempotent: nothing to remove is success. Returns what is left, with the reason.
        """


@runtime_checkable
class EndingProvider(Protocol):
    """A provider whose machines can end at a time, without a computer of ours."""

    def ends(self) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the cluster's machines, as the cloud describes them now.

        Empty: the cluster has no time limit, or no machines. Read-only. The state of what runs on the machines
        themselves is not known here (`armed` is None).
        """
