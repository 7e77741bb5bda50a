"""EKS as it is known without an account: a `provision.rented.managed_kubernetes.service.ServiceFacts`. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from inventories.specs.gpu_driver import DriverPlan
from provision.aws import preview as aws_preview
from provision.eks import efa, names, preview, requests
from provision.eks.description import CONTROL_PLANE_HOURLY_USD, CPU_MACHINE_USD
from provision.eks.offers import DISK_GB
from provision.eks.resources import listing
from provision.pricing.prices import Prices
from provision.records import CloudCluster, Offer, PlannedRequest, PlannedResource, Resource
from provision.rented import tags
from provision.rented.managed_kubernetes.plan import use_or_create
from provision.rented.managed_kubernetes.price import Beside
from provision.unsupported_options import taken_by


class EksFacts:
    """See the protocol, whose words hold here."""

    name = names.PROVIDER
    honoured = taken_by(names.PROVIDER)
    cluster_kind = listing.CLUSTER
    nodes_kind = listing.NODE_GROUP
    own_plugin = True
    cpu_machine = f"{requests.CPU_TYPE} with {requests.CPU_DISK_GB} GB"
    lasts = "the first `up` takes about twenty minutes: EKS makes a control plane in ten, and nodes after it"
    replacement = (
        "EKS tries to start another spot machine for one that AWS takes back or is likely to: both may be billed "
        "for a while, and the pods of the first are evicted"
    )
    """https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html, 2026-11."""

    def cluster_name(self, cluster: CloudCluster) -> str:
        """As the protocol says."""
        return names.cluster_name(cluster)

    def outline(self, cluster: CloudCluster) -> Offer:
        """As the protocol says."""
        offer = aws_preview.outline(cluster)
        region = cluster.target.region or "<region>"
        return replace(
            offer,
            image_id=requests.GPU_AMI,
            image_name=requests.GPU_AMI,
            image_why="EKS's image with NVIDIA's driver, of the control plane's version",
            driver=DriverPlan(source="image"),
            user="ray",
            disk_gb=cluster.disk_gb or DISK_GB,
            notes=efa.notes(cluster, offer.facts),
            facts={**offer.facts, "control_zones": [f"{region}a", f"{region}b"]},
        )

    def beside(self, prices: Prices, region: str | None) -> Beside:
        """As the protocol says."""
        found = prices.of(requests.CPU_TYPE, region)
        listed = CPU_MACHINE_USD if region in (None, "us-east-1") else None
        return Beside(
            cpu_usd=found.usd_per_hour if found is not None else listed,
            cpu_disk_gb=requests.CPU_DISK_GB,
            control_plane_usd=CONTROL_PLANE_HOURLY_USD,
        )

    def preview(
        self, cluster: CloudCluster, offer: Offer, count: int, there: Sequence[Resource]
    ) -> tuple[PlannedRequest, ...]:
        """As the protocol says."""
        return preview.preview(cluster, offer, count, there)

    def extras(
        self,
        offer: Offer,
        own: Sequence[Resource],
        found: Sequence[Resource],
    ) -> tuple[PlannedResource, ...]:
        """Two roles and the network."""
        network = any(one.kind == "vpc" and tags.is_shared(one.tags) for one in found)
        return (
            PlannedResource(
                action=use_or_create(any(one.kind == listing.ROLE for one in own)),
                kind="role",
                count=2,
                detail="of the control plane, of nodes",
            ),
            PlannedResource(
                action=use_or_create(network),
                kind="vpc",
                name="gpuctl",
                detail="shared by all clusters of the region, with subnets in two zones",
                hourly_usd=offer.network_hourly_usd,
            ),
        )


FACTS = EksFacts()
