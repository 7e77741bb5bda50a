"""AWS as a `provision.rented.interface.Cloud`: one account in one region."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inventories.threads import together
from provision.aws import checks, offers, preview, requests
from provision.aws.api import Api
from provision.aws.checks import sdk
from provision.aws.credentials import configured
from provision.aws.errors import of_state_reason
from provision.aws.infrastructure import network, security_group
from provision.aws.infrastructure.find_or_create import ResourceMaker
from provision.aws.instances import Machines
from provision.aws.resources import deletion, resource_types
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
from provision.rented.find_or_create import Ensure
from provision.rented.interface import Cloud
from provision.waiting import Clock

__all__ = ["AwsCloud", "configured", "connect", "outline", "sdk"]

CONSISTENCY_S = 60.0


def connect(target: Target, *, clock: Clock) -> Cloud:
    """Return the account and region of `target`; one call gets the account's number, unless the target has it.

    Raises BadCredentials, and InvalidInput without a region.
    """
    return AwsCloud(target, clock=clock)


def outline(cluster: CloudCluster, machines: Sequence[NewMachine]) -> tuple[Offer, Preview]:
    """Return the offer and the preview for an unknown account, as if it had no resource of ours. Pure."""
    offer = preview.outline(cluster)
    return offer, preview.preview(cluster, offer, machines, ())


class AwsCloud(Machines):
    """A `Cloud`."""

    name = "aws"
    one_user_data = True
    preview = staticmethod(preview.preview)

    def __init__(self, target: Target, *, clock: Clock) -> None:
        self.api = Api(region=target.region, profile=target.profile, clock=clock)
        self._clock = clock
        self.target = replace(target, region=self.api.region, account=target.account or self.api.account())
        self.consistency_s = float(os.environ.get("GPUCTL_CONSISTENCY_S", CONSISTENCY_S))

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:  # noqa: ARG002 - no image here has any
        """Return the shape, the image and the zones."""
        return offers.find(self.api, cluster)

    def maker(self, cluster: CloudCluster, ensure: Ensure) -> ResourceMaker:
        """Return the maker of a cluster's infrastructure."""
        return ResourceMaker(self.api, self._clock, self.consistency_s, cluster, ensure)

    def prepare(self, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Infrastructure:
        """Make VPC, gateway and route table for all clusters, security group and key pair for this cluster."""
        return network.prepare(self.maker(cluster, ensure), offer, public_key)

    def ssh_cidrs(self, cluster: CloudCluster) -> tuple[str, ...]:
        """Return the ranges that the cluster's group admits: see `AdmitsKeys`."""
        return security_group.ssh_cidrs(self.api, cluster)

    def prepare_zone(
        self, cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure, zone: Zone, ensure: Ensure
    ) -> Infrastructure:
        """Make the zone's subnet and its route, and a cluster placement group if the type takes one."""
        return network.prepare_zone(self.maker(cluster, ensure), offer, infrastructure, zone)

    def requests(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        zone: Zone,
        launch: str,
        machines: Sequence[NewMachine],
    ) -> tuple[dict[str, Any], ...]:
        """Return one request RunInstances."""
        return (requests.run_instances(cluster, offer, infrastructure, zone, launch, machines),)

    def failure(self, instance: Instance) -> Exception | None:
        """Return the error for the reason of an instance's last change of state."""
        return of_state_reason(instance.reason, zone=instance.zone.name) if instance.reason else None

    def resources(self) -> tuple[Resource, ...]:
        """Return our resources by tag."""
        return resource_types.resources(self.api)

    def billed(self) -> tuple[tuple[Instance, ...], tuple[Resource, ...]]:
        """Return machines, NAT gateways and Elastic IPs."""
        return together(
            self.instances, partial(resource_types.listed_all, self.api, ("nat-gateway", "elastic-ip"))
        )

    def delete(self, resource: Resource) -> None:
        """Remove a resource."""
        deletion.delete(self.api, self._clock, resource)

    def compartments(self) -> tuple[str, ...]:
        """Return nothing: an account has no parts."""
        return ()

    def regions(self) -> tuple[str, ...]:
        """Return the regions that are switched on for the account."""
        answer = self.api.call("describe_regions", AllRegions=False)
        return tuple(sorted(region["RegionName"] for region in answer["Regions"]))

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """Return the findings of `doctor`."""
        return checks.check(self.api, cluster, count, partial(offers.find, self.api))
