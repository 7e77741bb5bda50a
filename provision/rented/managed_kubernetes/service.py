"""Protocols of a cloud's Kubernetes service: the differences between clouds."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from provision.findings import Finding
from provision.pricing.prices import Prices
from provision.records import CloudCluster, EndGuard, Offer, PlannedRequest, Resource
from provision.rented.find_or_create import Ensure
from provision.rented.interface import Cloud
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.waiting import Say


@dataclass(frozen=True, kw_only=True)
class CreateContext:
    """The context that every step of creating a cluster needs."""

    cluster: CloudCluster
    offer: Offer
    ensure: Ensure
    say: Say
    network: Callable[[], AbstractContextManager[None]]
    """Keeps our other commands off the shared network."""
    staying: int
    """Number of existing machines that stay."""
    staying_addresses: Callable[[], Collection[str]]
    """Returns the known private addresses of the staying machines' nodes: other nodes end before these."""


@dataclass(frozen=True, kw_only=True)
class FixedCosts:
    """The costs of a cluster without its machines with GPUs."""

    cpu_usd: float | None
    """An hour of the machine for the operators and Ray's head. `None`: not known in that region."""
    cpu_disk_gb: int
    control_plane_usd: float


class ServiceTraits(Protocol):
    """A service, as far as it is known without an account. Pure."""

    name: str
    cluster_kind: str
    nodes_kind: str
    """Kinds of resources: a control plane, and a group of nodes."""
    own_plugin: bool
    """Whether gpuctl installs NVIDIA's device plug-in."""
    cpu_machine: str
    """The machine of the operators and of Ray's head, in words."""
    network: tuple[str, str]
    """Kind and description of the network that clusters share."""
    roles: str
    """The cluster's two roles, in words. Empty: the service needs no roles."""
    replacement: str
    """Note on spot machines that the cloud takes back: the service starts others for them."""

    def outline(self, cluster: CloudCluster) -> Offer:
        """Return an offer for a plan without an account: unknown values stand in <…>."""

    def fixed_costs(self, prices: Prices, region: str | None) -> FixedCosts:
        """Return the costs of the control plane and the machine without GPUs."""

    def preview(
        self, cluster: CloudCluster, offer: Offer, count: int, existing: Sequence[Resource]
    ) -> tuple[PlannedRequest, ...]:
        """Return the requests for missing resources, by the functions that make the real ones."""


class KubernetesService(Protocol):
    """One account in one region."""

    @property
    def cloud(self) -> Cloud:
        """The cloud, as teardown and `reap` need it."""

    def offer(self, cluster: CloudCluster) -> Offer:
        """Return the shape and the zones that have it. Raises UnknownShape and InvalidInput."""

    def refuse_over_quota(self, cluster: CloudCluster, offer: Offer, count: int, running: int) -> None:
        """Raise NoCapacity if the account may not have `count` machines, of which `running` exist."""

    def server(self, cluster: CloudCluster) -> ApiServer | None:
        """Return the API server. `None`: no working control plane."""

    def allowed_cidrs(self, cluster: CloudCluster) -> tuple[str, ...] | None:
        """Return the address ranges that reach the API server. `None`: no control plane yet."""

    def make_control_plane(self, context: CreateContext) -> ApiServer:
        """Make the control plane and its network, reached from `ssh_cidrs` alone. Raises CreateFailed, Exists."""

    def make_nodes(self, context: CreateContext, count: int) -> None:
        """Make both groups of nodes with their machines. Raises NoCapacity if no zone has them."""

    def end_nodes(self, context: CreateContext, count: int) -> None:
        """Scale down to `count` machines, and wait until the others have ended."""

    def end_guards(self, cluster: CloudCluster) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the machines, with their state. Empty: no mechanism, or no machines."""

    def token(self, cluster: CloudCluster) -> str:
        """Return a token for the API server, without a request."""

    def token_command(self, cluster: CloudCluster) -> list[str]:
        """Return the words after `gpuctl` that print a credential."""

    def findings(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """Return the findings of `doctor`. Read-only."""
