"""What differs between clouds that have Kubernetes as a service; all else is the same for them."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from provision.findings import Finding
from provision.pricing.prices import Prices
from provision.records import CloudCluster, EndGuard, Offer, PlannedRequest, PlannedResource, Resource
from provision.rented.interface import Cloud, Ensure
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.rented.managed_kubernetes.price import Beside
from provision.waiting import Say


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every step of making a cluster needs."""

    cluster: CloudCluster
    offer: Offer
    ensure: Ensure
    say: Say
    network: Callable[[], AbstractContextManager[None]]
    """Keeps our other commands off the shared network."""
    kept: int
    """How many machines there are already, and stay."""
    stay: Callable[[], Collection[str]]
    """Tells the private addresses of their nodes, as far as they are known: others end before these."""


class ServiceFacts(Protocol):
    """What is known of a service without an account. Pure."""

    name: str
    honoured: frozenset[str]
    """Fields of Spec that mean something to it."""
    cluster_kind: str
    nodes_kind: str
    """Kinds of resources: a control plane, and a group of nodes."""
    own_plugin: bool
    """Whether NVIDIA's device plug-in is installed by us."""
    cpu_machine: str
    """The machine of the operators and of Ray's head, in words."""
    lasts: str
    """How long the first `up` takes, and why."""
    replacement: str
    """Note on spot machines that the cloud takes back: the service starts others for them."""

    def cluster_name(self, cluster: CloudCluster) -> str:
        """Return the name of the Kubernetes cluster."""
        ...

    def outline(self, cluster: CloudCluster) -> Offer:
        """Return an offer for a plan without an account: what the catalog does not tell stands in <…>."""
        ...

    def beside(self, prices: Prices, region: str | None) -> Beside:
        """Return what is billed beside machines with GPUs."""
        ...

    def preview(
        self, cluster: CloudCluster, offer: Offer, count: int, there: Sequence[Resource]
    ) -> tuple[PlannedRequest, ...]:
        """Return the requests for what is not there yet, by the functions that make the real ones."""
        ...

    def extras(
        self, offer: Offer, own: Sequence[Resource], found: Sequence[Resource]
    ) -> tuple[PlannedResource, ...]:
        """Return what a plan shows beside machines and the control plane."""
        ...


class KubernetesService(Protocol):
    """One account in one region."""

    @property
    def facts(self) -> ServiceFacts:
        """What is known of the service anyhow."""
        ...

    @property
    def cloud(self) -> Cloud:
        """The cloud, as teardown and `reap` need it."""
        ...

    def offer(self, cluster: CloudCluster) -> Offer:
        """Return the shape, and where its machines can be. Raises UnknownShape and InvalidInput."""
        ...

    def refuse_over_quota(self, cluster: CloudCluster, offer: Offer, count: int, have: int) -> None:
        """Raise NoCapacity where the account may not have so many of them. `have`: how many of these are there."""
        ...

    def server(self, cluster: CloudCluster) -> ApiServer | None:
        """Return where the API server is. None: there is none that works."""
        ...

    def lets_in(self, cluster: CloudCluster) -> tuple[str, ...] | None:
        """Return the address ranges from which the API server is reached. None: there is none yet."""
        ...

    def make_control_plane(self, work: Work) -> ApiServer:
        """Have the control plane and what it needs, reached from `ssh_cidrs` alone. Raises CreateFailed, Exists."""
        ...

    def make_nodes(self, work: Work, count: int) -> None:
        """Have both groups of nodes with their machines. Raises NoCapacity where no zone has them."""
        ...

    def end_nodes(self, work: Work, count: int) -> None:
        """Leave so many machines, and wait until the others have gone."""
        ...

    def ends(self, cluster: CloudCluster) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the machines, with their state now. Empty: none, or no machines."""
        ...

    def token(self, cluster: CloudCluster) -> str:
        """Return a token for the API server. Asks nobody."""
        ...

    def token_command(self, cluster: CloudCluster) -> list[str]:
        """Return the words after `gpuctl` that print a credential."""
        ...

    def findings(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """Return what would make `up` fail. Read-only."""
        ...
