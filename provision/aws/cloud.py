"""AWS as `provision.cloud.interface.Cloud` has it: one account in one region."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inventories.errors import InvalidInput
from provision.aws import checks, preview, requests, shapes
from provision.aws import instances as machines
from provision.aws.api import Api, anything_configured
from provision.aws.errors import of_state_reason
from provision.aws.images import choice, lookup
from provision.aws.infrastructure import network
from provision.aws.infrastructure.find_or_create import Maker
from provision.aws.resources import deletion
from provision.clock import Clock
from provision.cloud.interface import Cloud, Ensure
from provision.cloud.planning.drivers import driver_plan
from provision.cloud.records import (
    CloudCluster,
    Finding,
    Infrastructure,
    Instance,
    NewMachine,
    Offer,
    Preview,
    Resource,
    Target,
    Zone,
)
from provision.errors import CloudError, Gone, UnknownShape
from provision.parallel import run_all, values

CONSISTENCY_S = 60.0


def connect(target: Target, *, clock: Clock) -> Cloud:
    """The account and region of `target`; one call tells whose account it is.

    Raises BadCredentials, and InvalidInput without a region.
    """
    return AwsCloud(target, clock=clock)


def configured() -> bool:
    """Whether there are credentials, profiles or a region, in the files, the variables or the machine's role."""
    return anything_configured()


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
        self._api = Api(region=target.region, profile=target.profile, clock=clock)
        self._clock = clock
        self.target = replace(target, region=self._api.region, account=self._api.account())
        self.consistency_s = float(os.environ.get("GPUCTL_CONSISTENCY_S", CONSISTENCY_S))
        self._maker = Maker(self._api, clock, self.consistency_s)

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:  # noqa: ARG002 - no image here has any
        """What AWS says of the shape, the image and the zones."""
        api = self._api
        reads: list[Callable[[], Any]] = [
            partial(shapes.describe, api, cluster.shape),
            partial(shapes.zones, api, cluster.shape),
            partial(shapes.zone_states, api),
            partial(self._subnet, cluster.subnet_id),
        ]
        described, offered, states, subnet = values(run_all(lambda read: read(), reads))
        shapes.refuse_unusable(described, cluster)
        image, why, there = choice.find(api, cluster, described)
        driver = driver_plan(
            cluster.driver,
            lookup.system(image),
            shape=cluster.shape,
            nvidia=bool(shapes.nvidia_gpus(described)),
        )
        zones = _zones(cluster, shapes.in_order(offered, states), subnet)
        offer = Offer(
            shape=cluster.shape,
            gpus=shapes.gpus(described),
            image_id=image["ImageId"],
            image_name=image.get("Name", image["ImageId"]),
            image_why=why,
            image_there=there,
            driver=driver,
            boot_commands=lookup.boot_commands(image),
            user=lookup.user_of(image),
            disk_gb=lookup.disk_gb(image, cluster.disk_gb),
            zones=tuple(Zone(name=zone) for zone in zones),
            hourly_usd=shapes.spot_usd(api, cluster.shape, zones) if cluster.spot else None,
            billed_when_stopped=False,
            facts=shapes.facts(described) | lookup.facts(image) | ({"subnet": subnet} if subnet else {}),
        )
        notes = preview.notes(cluster, offer)
        return replace(offer, network_hourly_usd=requests.network_hourly_usd(cluster), notes=notes)

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
        return machines.launch(self._api, request)

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """By tag; AWS lists ended ones for about an hour."""
        return machines.listed(self._api, cluster_id)

    def with_addresses(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """As they are: AWS lists instances with their addresses."""
        return tuple(instances)

    def failure(self, instance: Instance) -> Exception | None:
        """From the reason that AWS keeps of an instance's last change of state."""
        return of_state_reason(instance.reason, zone=instance.zone.name) if instance.reason else None

    def console(self, instance_id: str) -> str | None:
        """GetConsoleOutput."""
        return machines.console(self._api, self._clock, instance_id)

    def terminate(self, ids: Sequence[str]) -> None:
        """TerminateInstances in batches."""
        machines.terminate(self._api, ids)

    def resources(self) -> tuple[Resource, ...]:
        """By tag."""
        return deletion.resources(self._api)

    def delete(self, resource: Resource) -> None:
        """One part."""
        deletion.delete(self._api, self._clock, resource)

    def compartments(self) -> tuple[str, ...]:
        """An account has no parts."""
        return ()

    def regions(self) -> tuple[str, ...]:
        """Those that are switched on for the account."""
        answer = self._api.call("describe_regions", AllRegions=False)
        return tuple(sorted(region["RegionName"] for region in answer["Regions"]))

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """What `doctor` shows."""
        return checks.check(self._api, cluster, count, partial(self.offer, terms=True))

    def _subnet(self, subnet_id: str | None) -> dict[str, str] | None:
        """Where an existing subnet is."""
        if subnet_id is None:
            return None
        try:
            found = self._api.pages("describe_subnets", "Subnets", SubnetIds=[subnet_id])
        except CloudError as error:
            if isinstance(error, Gone) or error.code == "InvalidSubnetID.Malformed":
                raise InvalidInput(
                    f"There is no subnet '{subnet_id}' in {self._api.region}. `aws ec2 describe-subnets` lists them."
                ) from error
            raise
        return {"vpc": found[0]["VpcId"], "zone": found[0]["AvailabilityZone"]}


def _zones(cluster: CloudCluster, offered: Sequence[str], subnet: Mapping[str, str] | None) -> list[str]:
    region = cluster.target.region
    if not offered:
        raise UnknownShape(
            f"AWS offers {cluster.shape} in no zone of {region}. Try another --region or shape."
        )
    if subnet is None:
        return list(offered)
    if subnet["zone"] not in offered:
        raise InvalidInput(
            f"The subnet {cluster.subnet_id} is in {subnet['zone']}, where AWS does not offer {cluster.shape}; "
            f"it does in {', '.join(offered)}. Give a subnet there."
        )
    return [subnet["zone"]]
