"""EKS as a `provision.managed_kubernetes.service.KubernetesService`."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from provision.clock import Clock
from provision.cloud import tags
from provision.cloud.records import (
    CloudCluster,
    Finding,
    Offer,
    PlannedRequest,
    PlannedResource,
    Resource,
    Target,
)
from provision.eks import build, checks, names, offers, preview, requests, tokens
from provision.eks.cloud import EksCloud
from provision.eks.description import CONTROL_PLANE_HOURLY_USD, CPU_MACHINE_USD
from provision.eks.infrastructure.control_plane import describe, public_cidrs
from provision.eks.resources import listing
from provision.managed_kubernetes.api_server import ApiServer
from provision.managed_kubernetes.plan import use_or_create
from provision.managed_kubernetes.price import Beside
from provision.managed_kubernetes.service import Work
from provision.pricing.prices import Prices

HONOURED = frozenset(
    {"shape", "region", "profile", "disk_gb", "spot", "ssh_cidr", "ttl_s", "public_ip", "image"}
)
WORKS = ("ACTIVE", "UPDATING")
"""States of a control plane whose API server answers."""
COMMAND = "eks-token"
"""The command of gpuctl that prints a credential."""


class EksService:
    """One account in one region."""

    name = names.PROVIDER
    honoured = HONOURED
    cluster_kind = listing.CLUSTER
    nodes_kind = listing.NODE_GROUP
    own_plugin = True
    cpu_machine = f"{requests.CPU_TYPE} with {requests.CPU_DISK_GB} GB"
    lasts = "the first `up` takes about twenty minutes: EKS makes a control plane in ten, and nodes after it"

    def __init__(self, cloud: EksCloud, clock: Clock) -> None:
        self.cloud = cloud
        self._clock = clock

    def cluster_name(self, cluster: CloudCluster) -> str:
        """As the protocol says."""
        return names.cluster_name(cluster)

    def offer(self, cluster: CloudCluster) -> Offer:
        """As the protocol says."""
        return offers.find(self.cloud.api, cluster)

    def refuse_over_quota(self, cluster: CloudCluster, offer: Offer, count: int) -> None:
        """As the protocol says."""
        offers.refuse_over_quota(self.cloud.api, cluster, offer, count)

    def beside(self, prices: Prices, region: str | None) -> Beside:
        """As the protocol says."""
        found = prices.of(requests.CPU_TYPE, region)
        listed = CPU_MACHINE_USD if region == "us-east-1" else None
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
        cluster: CloudCluster,  # noqa: ARG002 - another cloud looks at it
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

    def server(self, cluster: CloudCluster) -> ApiServer | None:
        """As the protocol says."""
        told = describe(self.cloud.api, cluster)
        return None if told is None or told["status"] not in WORKS else _server(told)

    def lets_in(self, cluster: CloudCluster) -> tuple[str, ...] | None:
        """As the protocol says."""
        told = describe(self.cloud.api, cluster)
        return None if told is None or told["status"] not in WORKS else public_cidrs(told)

    def make_control_plane(self, work: Work) -> ApiServer:
        """As the protocol says."""
        return _server(build.control_plane(self._building(work)))

    def make_nodes(self, work: Work, count: int) -> None:
        """As the protocol says."""
        building = self._building(work)
        told = describe(self.cloud.api, work.cluster)
        assert told is not None, "it answered a moment ago"
        build.node_groups(building, told, count)

    def token(self, cluster: CloudCluster) -> str:
        """As the protocol says."""
        region = cluster.target.region
        assert region is not None
        return tokens.make(names.cluster_name(cluster), region, cluster.target.profile)[0]

    def token_command(self, cluster: CloudCluster) -> list[str]:
        """As the protocol says."""
        region = cluster.target.region
        assert region is not None
        profile = ["--profile", cluster.target.profile] if cluster.target.profile else []
        return [COMMAND, "--name", names.cluster_name(cluster), "--region", region, *profile]

    def findings(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """As the protocol says."""
        return checks.check(self.cloud.api, cluster, count)

    def _building(self, work: Work) -> build.Building:
        given: dict[str, Any] = {one.name: getattr(work, one.name) for one in fields(work)}
        return build.Building(api=self.cloud.api, maker=self.cloud.maker, clock=self._clock, **given)


def connect(target: Target, clock: Clock) -> EksService:
    """The account and region of `target`."""
    return EksService(EksCloud(target, clock=clock), clock)


def _server(told: Mapping[str, Any]) -> ApiServer:
    """Where EKS says that it is."""
    return ApiServer(url=told["endpoint"], authority=told.get("certificateAuthority", {}).get("data") or "")
