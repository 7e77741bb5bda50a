"""The interface of a cloud, and the clouds of this build by name.

A cloud's own package translates these calls into its SDK's, and the SDK's errors into `provision.errors`. All
decisions about machines (number, zone, rollback) are in this folder, once.
"""

import importlib
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from provision.clouds import describe, refuse_missing
from provision.findings import Finding
from provision.records import (
    CloudCluster,
    Infrastructure,
    Instance,
    NewMachine,
    Offer,
    Preview,
    Resource,
    ScheduledEnd,
    Target,
    Zone,
)
from provision.rented.find_or_create import Ensure
from provision.waiting import Clock, Say, SystemClock


class Cloud(Protocol):
    """One account in one region.

    Every method retries throttled calls, and unclear ones that may be repeated, up to a deadline. Lists have all
    pages; a list that can't be read raises, as an error never means an empty list.
    """

    name: str
    target: Target
    """The region, profile and compartment in use."""
    consistency_s: float
    """Longest time that a list may lack a new resource."""
    one_user_data: bool
    """True: the machines of a launch are made by one request and share their user-data."""

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:
        """Return the offer. Read-only. Raises UnknownShape, InvalidInput for a missing image, BadCredentials.

        `terms`: an image whose terms are not accepted yet may be chosen, as they will be. Without, the next default
        image is chosen; a requested image is refused with InvalidInput.
        """

    def preview(
        self,
        cluster: CloudCluster,
        offer: Offer,
        machines: Sequence[NewMachine],
        resources: Sequence[Resource],
        let_in: Sequence[str] = (),
    ) -> Preview:
        """Return the requests for these machines in the offer's first zone, and their resources.

        `resources`: all of ours in the region; existing ones need no request. `let_in`: ranges that reach SSH
        already. Pure: made by the functions that make the real requests.
        """

    def prepare(self, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Infrastructure:
        """Make network, firewall and key, and accept the terms of the offer. Idempotent.

        Existing resources with our tags are used, and their rules corrected. Raises TermsRefused, after which a new
        offer has another image; Exists for a resource of that name that is not ours.
        """

    def prepare_zone(
        self, cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure, zone: Zone, ensure: Ensure
    ) -> Infrastructure:
        """Make a zone's subnet and RDMA compute cluster, and return their ids with the others. Idempotent."""

    def requests(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        zone: Zone,
        launch: str,
        machines: Sequence[NewMachine],
    ) -> tuple[dict[str, Any], ...]:
        """Return the launch's requests, plain JSON with their tokens, tags and user-data. Pure."""

    def send(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        """Send one request of `requests`, and return the ids of its machines. A second sending makes no more.

        Raises Capacity, Quota, TokenSpent, Denied, Gone (infrastructure is missing), …
        """

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """Return the machines of a cluster, or of all of ours, also ended ones that are still listed.

        Addresses may be missing: see `with_addresses`.
        """

    def with_addresses(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """Return the instances with the addresses that they have by now."""

    def failure(self, instance: Instance) -> Exception | None:
        """Return the error of a machine that ended before it ran: Capacity, Quota, CloudError. `None`: not known."""

    def console(self, instance_id: str) -> str | None:
        """Return the end of a machine's serial console, at most 64 kB of printable lines. `None`: no output yet.

        Takes a minute or so at most, with fewer retries than other calls. Raises CloudError.
        """

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to end these machines; returns as soon as the cloud took it. Missing machines are no error."""

    def resources(self) -> tuple[Resource, ...]:
        """Return our resources in the region that are no instances."""

    def billed(self) -> tuple[tuple[Instance, ...], tuple[Resource, ...]]:
        """Return our machines, and our resources with a price of their own, by few requests.

        Nodes of a Kubernetes service count as machines, too.
        """

    def delete(self, resource: Resource) -> None:
        """Remove a resource and wait until it is gone, at most some seconds. A missing resource is no error.

        Raises Blocked while it is in use.
        """

    def regions(self) -> tuple[str, ...]:
        """Return the regions that the account can use."""

    def compartments(self) -> tuple[str, ...]:
        """Return the parts of the account that resources can be in: OCI's compartments. Empty: no such parts."""

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """Return the findings on credentials, permissions, quota, clock, image and shape. Read-only."""


@runtime_checkable
class SchedulesEnd(Protocol):
    """A cloud whose machines end by a schedule of the cloud itself."""

    def schedule_end(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        machines: Sequence[Instance],
        ensure: Ensure,
    ) -> None:
        """Schedule the end of these machines for the end of the cluster's time. Idempotent. Raises CloudError."""

    def scheduled_ends(self, cluster_id: str) -> tuple[ScheduledEnd, ...]:
        """Return the schedules for a cluster's machines, as the cloud describes them now. Raises CloudError."""

    def forget_ended(self, cluster_id: str, alive: Sequence[str], say: Say) -> None:
        """Keep the cloud from replacing dead machines of the cluster.

        A machine that it is making already is listed when this returns. Raises CloudError.
        """

    def end_pools(self, cluster_ids: Collection[str] | None) -> None:
        """Begin to end the pools that replace these clusters' machines, with the machines. `None`: of all clusters.

        Raises CloudError.
        """


@runtime_checkable
class AdmitsKeys(Protocol):
    """A cloud that lets another computer of the account log in to a machine."""

    def user_data(self, machine_id: str) -> str:
        """Return the text that cloud-init got on the machine, or an empty one. Raises CloudError."""

    def ssh_cidrs(self, cluster: CloudCluster) -> tuple[str, ...]:
        """Return the address ranges that reach the cluster's SSH now. Raises CloudError."""

    def admit_key(self, machine_id: str, user: str, public_key: str) -> str:
        """Have the machine accept the key for `user`, for a minute at least.

        Returns a clause on the parts of a machine without which it does not, though the cloud took the key. Raises
        CloudError with the missing part: a permission, or a program on the machine.
        """


def connect(target: Target, clock: Clock | None = None) -> Cloud:
    """Return the account and region of `target`.

    Raises:
        BadCredentials: the account is not usable with the credentials here.
        UnknownProvider: the cloud's SDK is missing.
    """
    cloud: Cloud = _control(target.provider).connect(target, clock=clock or SystemClock())
    return cloud


def configured(cloud: str) -> bool:
    """Return whether the cloud is set up on this computer, rightly or not. Asks no account."""
    is_configured: bool = _control(cloud).configured()
    return is_configured


def sdk(cloud: str) -> Finding:
    """Return a finding with the version of the cloud's SDK. Asks no account."""
    finding: Finding = _control(cloud).sdk()
    return finding


def outline(cluster: CloudCluster, machines: Sequence[NewMachine]) -> tuple[Offer, Preview]:
    """Return the offer and the preview of these machines for an unknown account."""
    outlined: tuple[Offer, Preview] = _control(cluster.target.provider).outline(cluster, machines)
    return outlined


def _control(cloud: str) -> ModuleType:
    description = describe(cloud)
    if description.sdk is not None:
        refuse_missing(cloud, description.sdk)
    return importlib.import_module(description.control)
