"""What a cloud implements, so that machines can be launched, shown and removed: the interface of a new cloud.

A cloud's own package translates these few questions into its SDK's calls, and the SDK's errors into
`provision.errors`. Whatever decides about machines (how many, where, what is undone) is written once, in this folder.
"""

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from provision.clouds import describe, installed
from provision.errors import UnknownProvider
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
from provision.waiting import Clock, SystemClock


class Ensure(Protocol):
    """Finds a resource or creates it, once, whatever crashed before."""

    say: Callable[[str], None]
    """Takes a line of progress, for resources that take minutes."""

    def __call__(
        self,
        kind: str,
        *,
        find: Callable[[], str | None],
        create: Callable[[str], str],
        shared: bool = False,
    ) -> str:
        """The id of the resource: found, or created. `kind` names one, as in `subnet us-east-1a`.

        `shared`: it belongs to the network of all clusters, not to this one.

        `find` asks the cloud, by tag. `create` takes a token, which is on the disk by then, and returns the
        new id; where it raises Unclear, `find` is asked until it tells or the cloud's listing has settled.
        """


class Cloud(Protocol):
    """One account in one region.

    Every method is patient: throttling, and unclear outcomes of what may be repeated, are retried to a
    deadline before they are raised. Lists are whole, all pages; a list that can't be read raises, as an
    error never means that there is nothing.
    """

    name: str
    target: Target
    """Region, profile and compartment as they were found."""
    consistency_s: float
    """How long a list may lag behind what was made."""
    one_user_data: bool
    """True: the machines of a launch are made by one request and share their user-data."""
    all_or_none: bool
    """True: a launch's request makes all of its machines or none."""

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:
        """Read-only. Raises UnknownShape, InvalidInput for an image that is not there, BadCredentials.

        `terms`: whether an image may be taken whose terms nobody has accepted yet, as they will be. Without, the
        next default image is taken; one that was asked for by name is refused with InvalidInput.
        """

    def preview(
        self,
        cluster: CloudCluster,
        offer: Offer,
        machines: Sequence[NewMachine],
        resources: Sequence[Resource],
        let_in: Sequence[str] = (),
    ) -> Preview:
        """The requests that would be sent for these machines at the offer's first zone, and what they are about.

        `resources`: all of ours in the region; what is there already is used, and no request is made for it.
        `let_in`: from where SSH is let in already. Pure: made by the functions that make the real ones.
        """

    def prepare(self, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Infrastructure:
        """Network, firewall, key; the terms of `offer` are accepted. Idempotent: what is there with our tags is
        used, and its rules are mended.

        Raises TermsRefused, and then a new offer has another image; Exists where something of that name is
        there that isn't ours.
        """

    def prepare_zone(
        self, cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure, zone: Zone, ensure: Ensure
    ) -> Infrastructure:
        """`infrastructure` with what one zone needs: its subnet, an RDMA compute cluster. Idempotent."""

    def requests(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        zone: Zone,
        launch: str,
        machines: Sequence[NewMachine],
    ) -> tuple[dict[str, Any], ...]:
        """The launch's requests, plain JSON with their tokens, tags and user-data. Pure."""

    def send(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        """Send one request of `requests`; the ids of its machines. The same request never makes them twice.

        Raises Capacity, Quota, TokenSpent, Denied, Gone (some of the infrastructure is not there), …
        """

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """All machines of a cluster, or of all of ours, also those that have ended and are still listed.

        Addresses may be missing: see `with_addresses`.
        """

    def with_addresses(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """The instances with their addresses, where they have any by now."""

    def failure(self, instance: Instance) -> Exception | None:
        """Why a machine ended that never ran: Capacity, Quota or CloudError. None: the cloud doesn't say."""

    def console(self, instance_id: str) -> str | None:
        """The end of a machine's serial console, at most 64 kB of printable lines. None: it shows nothing yet.

        Takes a minute or so at most, with less patience than other calls. Raises CloudError.
        """

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to end these machines; returns as soon as the cloud has understood. Gone ones are no error."""

    def resources(self) -> tuple[Resource, ...]:
        """Everything of ours in the region that is no instance."""

    def delete(self, resource: Resource) -> None:
        """Remove a resource and wait until it is gone, at most some seconds. One that is gone is no error.

        Raises Blocked while something uses it.
        """

    def regions(self) -> tuple[str, ...]:
        """The regions that the account can use."""

    def compartments(self) -> tuple[str, ...]:
        """The parts of the account that resources can be in, where the cloud has such: OCI's compartments."""

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """What would make `up` fail: credentials, permissions, quota, clock, image, shape. Read-only."""


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
        """Have the cloud terminate these machines at the end of the cluster's time. Idempotent. Raises CloudError."""

    def scheduled_ends(self, cluster_id: str) -> tuple[ScheduledEnd, ...]:
        """Return the schedules for a cluster's machines, as the cloud describes them now. Raises CloudError."""

    def forget_ended(self, cluster_id: str, alive: Sequence[str], say: Callable[[str], None]) -> None:
        """Keep the cloud from making machines in place of dead ones of the cluster.

        A machine that it is making already is listed when this returns. Raises CloudError.
        """

    def end_pools(self, cluster_ids: Collection[str] | None) -> None:
        """Begin to end what keeps the number of these clusters' machines, with the machines. None: of all clusters.

        Raises CloudError.
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
    if not installed(cloud):
        raise UnknownProvider(
            f"Provider {cloud} needs the Python package '{description.sdk}'. Install it beside gpuctl: "
            f"`pip install {description.sdk}`."
        )
    return importlib.import_module(description.control)
