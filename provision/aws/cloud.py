"""AWS as a `provision.rented.interface.Cloud`: one account in one region."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from provision.aws import checks, credentials, offers, preview, requests, serial_console
from provision.aws import instances as machines
from provision.aws.api import Api
from provision.aws.errors import of_state_reason
from provision.aws.infrastructure import network
from provision.aws.infrastructure.find_or_create import ResourceMaker
from provision.aws.resources import deletion, listing
from provision.findings import Finding
from provision.records import (
    CloudCluster,
    Infrastructure,
    Instance,
    NewMachine,
    Offer,
    Preview,
    Resource,
    Target,
    Zone,
)
from provision.rented.interface import Cloud, Ensure
from provision.waiting import Clock

CONSISTENCY_S = 60.0


def connect(target: Target, *, clock: Clock) -> Cloud:
    """The account and region of `target`; one call tells whose account it is.

    Raises BadCredentials, and InvalidInput without a region.
    """
    return AwsCloud(target, clock=clock)


def configured() -> bool:
    """Whether there are credentials, profiles or a region, in the files, the variables or the machine's role."""
    return credentials.configured()


def sdk() -> Finding:
    """The SDK's version."""
    return checks.sdk()


def outline(cluster: CloudCluster, machines: Sequence[NewMachine]) -> tuple[Offer, Preview]:
    """`offer` and `preview` without an account: as if nothing of ours were there. Pure."""
    offer = preview.outline(cluster)
    return offer, preview.preview(cluster, offer, machines, ())


class AwsCloud:
    """See `Cloud`."""

    name = "aws"
    one_user_data = True
    all_or_none = True

    def __init__(self, target: Target, *, clock: Clock) -> None:
        self.api = Api(region=target.region, profile=target.profile, clock=clock)
        self._clock = clock
        self.target = replace(target, region=self.api.region, account=self.api.account())
        self.consistency_s = float(os.environ.get("GPUCTL_CONSISTENCY_S", CONSISTENCY_S))
        self._maker = ResourceMaker(self.api, clock, self.consistency_s)

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:  # noqa: ARG002 - no image here has any
        """What AWS says of the shape, the image and the zones."""
        return offers.find(self.api, cluster)

    def preview(
        self,
        cluster: CloudCluster,
        offer: Offer,
        machines: Sequence[NewMachine],
        resources: Sequence[Resource],
        let_in: Sequence[str] = (),
    ) -> Preview:
        """As the protocol says."""
        return preview.preview(cluster, offer, machines, resources, let_in)

    def prepare(self, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Infrastructure:
        """VPC, gateway and route table for all clusters; security group and key pair for this one."""
        return network.prepare(self._maker, cluster, offer, public_key, ensure)

    def prepare_zone(
        self, cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure, zone: Zone, ensure: Ensure
    ) -> Infrastructure:
        """The zone's subnet and its way out, and a cluster placement group where the type takes one."""
        return network.prepare_zone(self._maker, cluster, offer, infrastructure, zone, ensure)

    def requests(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        zone: Zone,
        launch: str,
        machines: Sequence[NewMachine],
    ) -> tuple[dict[str, Any], ...]:
        """One RunInstances."""
        return (requests.run_instances(cluster, offer, infrastructure, zone, launch, machines),)

    def send(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        """RunInstances; the launch's token keeps AWS from doing it twice."""
        return machines.launch(self.api, request)

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """By tag; AWS lists ended ones for about an hour."""
        return machines.listed(self.api, cluster_id)

    def with_addresses(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """As they are: AWS lists instances with their addresses."""
        return tuple(instances)

    def failure(self, instance: Instance) -> Exception | None:
        """From the reason that AWS keeps of an instance's last change of state."""
        return of_state_reason(instance.reason, zone=instance.zone.name) if instance.reason else None

    def console(self, instance_id: str) -> str | None:
        """GetConsoleOutput."""
        return serial_console.read(self.api, self._clock, instance_id)

    def terminate(self, ids: Sequence[str]) -> None:
        """TerminateInstances in batches."""
        machines.terminate(self.api, ids)

    def resources(self) -> tuple[Resource, ...]:
        """By tag."""
        return listing.resources(self.api)

    def delete(self, resource: Resource) -> None:
        """One resource."""
        deletion.delete(self.api, self._clock, resource)

    def compartments(self) -> tuple[str, ...]:
        """An account has no parts."""
        return ()

    def regions(self) -> tuple[str, ...]:
        """Those that are switched on for the account."""
        answer = self.api.call("describe_regions", AllRegions=False)
        return tuple(sorted(region["RegionName"] for region in answer["Regions"]))

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """What `doctor` shows."""
        return checks.check(self.api, cluster, count, partial(offers.find, self.api))
