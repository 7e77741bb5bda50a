"""OCI as a `provision.rented.interface.Cloud`: one compartment in one region."""

import os
from collections.abc import Sequence
from typing import Any

from provision.errors import Denied, TermsRefused
from provision.findings import Finding
from provision.oci import (
    checks,
    credentials,
    offers,
    preview,
    quotas,
    requests,
)
from provision.oci.api import Api
from provision.oci.checks import sdk
from provision.oci.credentials import configured
from provision.oci.images import marketplace
from provision.oci.infrastructure import network, security_group
from provision.oci.instance_pool import ScheduledEnds
from provision.oci.instances import Machines
from provision.oci.resources import deletion, resource_types
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
from provision.waiting import Clock

__all__ = ["OciCloud", "configured", "connect", "outline", "sdk"]

CONSISTENCY_S = 20.0


def connect(target: Target, *, clock: Clock) -> "OciCloud":
    """Return the cloud for a target, without a request. Raises BadCredentials."""
    caller = credentials.find(target)
    place = Target(
        provider="oci",
        region=caller.region,
        profile=caller.profile,
        compartment=caller.compartment,
        account=caller.tenancy,
    )
    consistency = os.environ.get("GPUCTL_CONSISTENCY_S")
    return OciCloud(Api(caller, clock), place, float(consistency) if consistency else CONSISTENCY_S)


def outline(cluster: CloudCluster, machines: Sequence[NewMachine]) -> tuple[Offer, Preview]:
    """Return the offer and the preview for an unknown account, as if it had no resource of ours. Pure."""
    offer = preview.outline(cluster)
    return offer, preview.preview(cluster, offer, machines, ())


class OciCloud(Machines, ScheduledEnds):
    """A `Cloud`."""

    name = "oci"
    one_user_data = False
    preview = staticmethod(preview.preview)

    def __init__(self, api: Api, target: Target, consistency_s: float = CONSISTENCY_S) -> None:
        self.target = target
        self.consistency_s = consistency_s
        self.api = api
        self._refused: str | None = None
        """Reason why the terms of the default image could not be accepted. `None`: not tried."""

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:
        """Return the shape, the image and the domains."""
        return offers.find(self.api, cluster, terms=terms, refused=self._refused)

    def prepare(self, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Infrastructure:
        """Accept the image's terms, and make the network and the cluster's group."""
        try:
            marketplace.subscribe(self.api, offer, ensure)
        except Denied as error:
            if cluster.image is not None:
                raise
            self._refused = "the account may not accept its terms"
            raise TermsRefused(str(error), operation=error.operation, code=error.code) from error
        return network.prepare(self.api, cluster, public_key, ensure)

    def ssh_cidrs(self, cluster: CloudCluster) -> tuple[str, ...]:
        """Return the ranges that the cluster's group admits: see `AdmitsKeys`."""
        return security_group.allowed_cidrs(self.api, cluster, cluster.ssh_port) or ()

    def prepare_zone(
        self, cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure, zone: Zone, ensure: Ensure
    ) -> Infrastructure:
        """Make the domain's compute cluster if the cluster has an RDMA network."""
        if not requests.in_compute_cluster(cluster, offer.facts):
            return infrastructure
        made = network.compute_cluster(self.api, cluster, zone.name, ensure)
        return Infrastructure(ids={**infrastructure.ids, "compute_cluster": made})

    def requests(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        zone: Zone,
        launch: str,
        machines: Sequence[NewMachine],
    ) -> tuple[dict[str, Any], ...]:
        """Return one request a machine, with the room that the launch needs."""
        room = quotas.room_needed(offer, zone, len(machines))
        return tuple(
            requests.launch(cluster, offer, infrastructure, zone, launch, machine) | {"room": room}
            for machine in machines
        )

    def resources(self) -> tuple[Resource, ...]:
        """Return our resources by tag."""
        return resource_types.resources(self.api)

    def billed(self) -> tuple[tuple[Instance, ...], tuple[Resource, ...]]:
        """Return machines: OCI's networks are free."""
        return self.instances(), ()

    def delete(self, resource: Resource) -> None:
        """Remove a resource."""
        deletion.delete(self.api, resource)

    def compartments(self) -> tuple[str, ...]:
        """Return the tenancy and all accessible compartments."""
        listed = self.api.list_all(
            "identity.list_compartments",
            self.api.tenancy,
            compartment_id_in_subtree=True,
            access_level="ACCESSIBLE",
            lifecycle_state="ACTIVE",
        )
        return (self.api.tenancy, *(str(compartment["id"]) for compartment in listed))

    def regions(self) -> tuple[str, ...]:
        """Return the subscribed regions."""
        listed = self.api.list_all("identity.list_region_subscriptions", self.api.tenancy)
        return tuple(
            str(subscription["regionName"])
            for subscription in listed
            if subscription.get("status") == "READY"
        )

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """Return the findings of `doctor`."""
        return checks.findings(self.api, cluster, count)
