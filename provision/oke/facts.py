"""OKE as it is known without an account: a `provision.rented.managed_kubernetes.service.ServiceFacts`. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from inventories.specs.gpu_driver import DriverPlan
from provision.oci import preview as oci_preview
from provision.oke import names, requests
from provision.oke.description import (
    CONTROL_PLANE_HOURLY_USD,
    CPU_MACHINE_USD,
    CPU_MEMORY_GB,
    CPU_OCPUS,
    CPU_SHAPE,
)
from provision.oke.offers import DISK_GB
from provision.pricing.prices import Prices
from provision.records import CloudCluster, Offer, PlannedRequest, PlannedResource, Resource
from provision.rented import tags
from provision.rented.managed_kubernetes.plan import use_or_create
from provision.rented.managed_kubernetes.price import Beside
from provision.unsupported_options import taken_by


class OkeFacts:
    """See the protocol, whose words hold here."""

    name = names.PROVIDER
    honoured = taken_by(names.PROVIDER)
    cluster_kind = "kubernetes-cluster"
    nodes_kind = "node-pool"
    own_plugin = False
    cpu_machine = (
        f"{CPU_SHAPE} with {CPU_OCPUS} OCPUs, {CPU_MEMORY_GB} GB and {requests.CPU_DISK_GB} GB of disk"
    )
    lasts = "the first `up` takes about twenty minutes: OKE makes a control plane in ten, and nodes after it"
    replacement = "OKE tries to start another preemptible machine for one that OCI takes back"
    """https://docs.oracle.com/iaas/Content/ContEng/Tasks/contengusingpreemptiblecapacity.htm, 2026-11."""

    def cluster_name(self, cluster: CloudCluster) -> str:
        """As the protocol says."""
        return names.cluster_name(cluster)

    def outline(self, cluster: CloudCluster) -> Offer:
        """As the protocol says."""
        offer = oci_preview.outline(cluster)
        image = "<OKE's newest image with NVIDIA's driver>"
        return replace(
            offer,
            image_id=image,
            image_name=image,
            image_why="the account can't be asked which images it can have",
            driver=DriverPlan(source="image"),
            terms=None,
            user="ray",
            disk_gb=cluster.disk_gb or DISK_GB,
            facts={**offer.facts, "version": "<newest version>", "cpu_image": "<OKE's newest image>"},
        )

    def beside(self, prices: Prices, region: str | None) -> Beside:  # noqa: ARG002 - OCI's prices are one list
        """As the protocol says."""
        return Beside(
            cpu_usd=CPU_MACHINE_USD,
            cpu_disk_gb=requests.CPU_DISK_GB,
            control_plane_usd=CONTROL_PLANE_HOURLY_USD,
        )

    def preview(
        self, cluster: CloudCluster, offer: Offer, count: int, there: Sequence[Resource]
    ) -> tuple[PlannedRequest, ...]:
        """As the protocol says."""
        kinds = {one.kind for one in there}
        compartment, zone = cluster.target.compartment or "<compartment>", offer.zones[0].name
        ids = {name: f"<{name}>" for name in ("vcn", "subnet", "nsg", "cluster")}
        if offer.facts["compute_cluster"]:
            ids["compute_cluster"] = "<compute cluster>"
        made: list[tuple[str, requests.Json]] = []
        if self.cluster_kind not in kinds:
            body = requests.control_plane(cluster, compartment, offer.facts["version"], ids)
            made += [("CreateCluster", body), ("InstallAddon", requests.addon(cluster))]
        if self.nodes_kind not in kinds:
            made += [
                ("CreateNodePool", requests.cpu_pool(cluster, compartment, offer.facts, zone, ids)),
                ("CreateNodePool", requests.gpu_pool(cluster, compartment, offer, count, zone, ids)),
            ]
        return tuple(PlannedRequest(operation=operation, body=body) for operation, body in made)

    def extras(
        self,
        offer: Offer,
        own: Sequence[Resource],  # noqa: ARG002 - the network is everybody's
        found: Sequence[Resource],
    ) -> tuple[PlannedResource, ...]:
        """The network."""
        there = any(one.kind == "vcn" and tags.is_shared(one.tags) for one in found)
        return (
            PlannedResource(
                action=use_or_create(there),
                kind="vcn",
                name="gpuctl",
                detail="shared by all clusters of the region",
                hourly_usd=offer.network_hourly_usd,
            ),
        )


FACTS = OkeFacts()
