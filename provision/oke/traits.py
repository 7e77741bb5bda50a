"""OKE, as far as it is known without an account: a `ServiceTraits`. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from inventories.specs.gpu_driver import DriverPlan
from provision.oci import preview as oci_preview
from provision.oke import requests
from provision.oke.description import (
    CONTROL_PLANE_HOURLY_USD,
    CPU_MACHINE_USD,
    CPU_MEMORY_GB,
    CPU_OCPUS,
    CPU_SHAPE,
)
from provision.pricing.prices import Prices
from provision.records import CloudCluster, Offer, PlannedRequest, Resource
from provision.rented.managed_kubernetes.service import FixedCosts

DISK_GB = 200


class OkeTraits:
    """A `ServiceTraits`."""

    name = requests.PROVIDER
    cluster_kind = "kubernetes-cluster"
    nodes_kind = "node-pool"
    own_plugin = False
    cpu_machine = (
        f"{CPU_SHAPE} with {CPU_OCPUS} OCPUs, {CPU_MEMORY_GB} GB and {requests.CPU_DISK_GB} GB of disk"
    )
    network = ("vcn", "shared by all clusters of the region")
    roles = ""
    replacement = "OKE tries to start another preemptible machine for one that OCI takes back"
    """https://docs.oracle.com/iaas/Content/ContEng/Tasks/contengusingpreemptiblecapacity.htm, 2026-11."""

    def outline(self, cluster: CloudCluster) -> Offer:
        """Return an offer for a plan without an account."""
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

    def fixed_costs(self, prices: Prices, region: str | None) -> FixedCosts:  # noqa: ARG002 - the same everywhere
        """Return the costs of the control plane and the machine without GPUs."""
        return FixedCosts(
            cpu_usd=CPU_MACHINE_USD,
            cpu_disk_gb=requests.CPU_DISK_GB,
            control_plane_usd=CONTROL_PLANE_HOURLY_USD,
        )

    def preview(
        self, cluster: CloudCluster, offer: Offer, count: int, existing: Sequence[Resource]
    ) -> tuple[PlannedRequest, ...]:
        """Return the requests for missing resources."""
        kinds = {resource.kind for resource in existing}
        zone = offer.zones[0].name
        ids = {name: f"<{name}>" for name in ("vcn", "subnet", "nsg", "cluster")}
        if offer.facts["compute_cluster"]:
            ids["compute_cluster"] = "<compute cluster>"
        planned: list[tuple[str, requests.Json]] = []
        if self.cluster_kind not in kinds:
            body = requests.control_plane(cluster, offer.facts["version"], ids)
            planned += [("CreateCluster", body), ("InstallAddon", requests.addon(cluster))]
        if self.nodes_kind not in kinds:
            planned += [
                ("CreateNodePool", requests.cpu_pool(cluster, offer.facts, zone, ids)),
                ("CreateNodePool", requests.gpu_pool(cluster, offer, count, zone, ids)),
            ]
        return tuple(PlannedRequest(operation=operation, body=body) for operation, body in planned)


TRAITS = OkeTraits()
