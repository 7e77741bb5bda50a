"""OCI as a `provision.rented.interface.Cloud`: one compartment in one region."""

import os
from collections.abc import Collection, Mapping, Sequence
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
    scheduled_end,
    serial_console,
)
from provision.oci import instances as machines
from provision.oci.api import Api
from provision.oci.images import marketplace
from provision.oci.infrastructure import network
from provision.oci.resources import deletion, listing
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
from provision.rented.interface import Ensure
from provision.waiting import Clock, Say

CONSISTENCY_S = 20.0


def connect(target: Target, *, clock: Clock) -> "OciCloud":
    """The cloud for a target. Asks nothing of it yet. Raises BadCredentials."""
    found = credentials.find(target)
    where = Target(
        provider="oci",
        region=found.region,
        profile=found.profile,
        compartment=found.compartment,
        account=found.tenancy,
    )
    consistency = os.environ.get("GPUCTL_CONSISTENCY_S")
    return OciCloud(Api(found, clock), where, float(consistency) if consistency else CONSISTENCY_S)


def configured() -> bool:
    """Whether there is a configuration file, or a variable that stands for one."""
    return credentials.configured()


def sdk() -> Finding:
    """The SDK's version."""
    return checks.sdk()


def outline(cluster: CloudCluster, machines: Sequence[NewMachine]) -> tuple[Offer, Preview]:
    """`offer` and `preview` without an account: as if nothing of ours were there. Pure."""
    offer = preview.outline(cluster)
    return offer, preview.preview(cluster, offer, machines, (), cluster.target.compartment or "<compartment>")


class OciCloud:
    """See `provision.rented.interface.Cloud`, whose words hold here."""

    name = "oci"
    one_user_data = False
    all_or_none = False

    def __init__(self, api: Api, target: Target, consistency_s: float = CONSISTENCY_S) -> None:
        self.target = target
        self.consistency_s = consistency_s
        self.api = api
        self._refused: str | None = None
        """Why the terms of the default image can't be accepted, once that was tried."""

    def offer(self, cluster: CloudCluster, *, terms: bool = False) -> Offer:
        """As the protocol says."""
        return offers.find(self.api, cluster, terms=terms, refused=self._refused)

    def preview(
        self,
        cluster: CloudCluster,
        offer: Offer,
        machines: Sequence[NewMachine],
        resources: Sequence[Resource],
        let_in: Sequence[str] = (),
    ) -> Preview:
        """As the protocol says."""
        return preview.preview(cluster, offer, machines, resources, self.api.compartment, let_in)

    def prepare(self, cluster: CloudCluster, offer: Offer, public_key: str, ensure: Ensure) -> Infrastructure:
        """As the protocol says."""
        try:
            marketplace.subscribe(self.api, offer, ensure)
        except Denied as error:
            if cluster.image is not None:
                raise
            self._refused = "the account may not accept its terms"
            raise TermsRefused(str(error), operation=error.operation, code=error.code) from error
        return network.prepare(self.api, cluster, public_key, ensure)

    def prepare_zone(
        self, cluster: CloudCluster, offer: Offer, infrastructure: Infrastructure, zone: Zone, ensure: Ensure
    ) -> Infrastructure:
        """As the protocol says."""
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
        """As the protocol says."""
        where = self.api.compartment
        room = quotas.room_needed(offer, zone, len(machines))
        return tuple(
            requests.launch(cluster, offer, infrastructure, zone, launch, machine, where) | {"room": room}
            for machine in machines
        )

    def send(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        """As the protocol says."""
        return machines.send(self.api, request)

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """As the protocol says."""
        return machines.instances(self.api, cluster_id)

    def with_addresses(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """As the protocol says."""
        return machines.with_addresses(self.api, instances)

    def failure(self, instance: Instance) -> Exception | None:
        """As the protocol says."""
        return machines.failure(self.api, instance)

    def console(self, instance_id: str) -> str | None:
        """As the protocol says."""
        return serial_console.read(self.api, instance_id)

    def terminate(self, ids: Sequence[str]) -> None:
        """As the protocol says."""
        machines.terminate(self.api, ids)

    def schedule_end(
        self,
        cluster: CloudCluster,
        offer: Offer,
        infrastructure: Infrastructure,
        machines: Sequence[Instance],
        ensure: Ensure,
    ) -> None:
        """Implement `SchedulesEnd`."""
        scheduled_end.schedule(self.api, cluster, offer, infrastructure, machines, ensure)

    def scheduled_ends(self, cluster_id: str) -> tuple[ScheduledEnd, ...]:
        """Implement `SchedulesEnd`."""
        return scheduled_end.scheduled(self.api, cluster_id)

    def forget_ended(self, cluster_id: str, alive: Sequence[str], say: Say) -> None:
        """Implement `SchedulesEnd`."""
        scheduled_end.forget_ended(self.api, cluster_id, alive, say)

    def end_pools(self, cluster_ids: Collection[str] | None) -> None:
        """Implement `SchedulesEnd`."""
        scheduled_end.end_pools(self.api, cluster_ids)

    def resources(self) -> tuple[Resource, ...]:
        """As the protocol says."""
        return listing.resources(self.api)

    def delete(self, resource: Resource) -> None:
        """As the protocol says."""
        deletion.delete(self.api, resource)

    def compartments(self) -> tuple[str, ...]:
        """As the protocol says."""
        found = self.api.list_all(
            "identity.list_compartments",
            self.api.tenancy,
            compartment_id_in_subtree=True,
            access_level="ACCESSIBLE",
            lifecycle_state="ACTIVE",
        )
        return (self.api.tenancy, *(str(one["id"]) for one in found))

    def regions(self) -> tuple[str, ...]:
        """As the protocol says."""
        found = self.api.list_all("identity.list_region_subscriptions", self.api.tenancy)
        return tuple(str(one["regionName"]) for one in found if one.get("status") == "READY")

    def check(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """As the protocol says."""
        return checks.findings(self.api, cluster, count)
