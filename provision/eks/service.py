"""EKS as a `provision.rented.managed_kubernetes.service.KubernetesService`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from provision.eks import build, checks, ends, names, offers, tokens
from provision.eks.cloud import EksCloud
from provision.eks.facts import FACTS
from provision.eks.infrastructure.control_plane import describe, public_cidrs
from provision.findings import Finding
from provision.records import CloudCluster, EndGuard, Offer, Target
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.rented.managed_kubernetes.service import Work
from provision.waiting import Clock

WORKS = ("ACTIVE", "UPDATING")
"""States of a control plane whose API server answers."""
COMMAND = "eks-token"
"""The command of gpuctl that prints a credential."""


class EksService:
    """One account in one region."""

    facts = FACTS

    def __init__(self, cloud: EksCloud, clock: Clock) -> None:
        self.cloud = cloud
        self._clock = clock

    def offer(self, cluster: CloudCluster) -> Offer:
        """As the protocol says."""
        return offers.find(self.cloud.api, cluster)

    def refuse_over_quota(
        self,
        cluster: CloudCluster,
        offer: Offer,
        count: int,
        have: int,  # noqa: ARG002 - a quota counts all
    ) -> None:
        """As the protocol says."""
        offers.refuse_over_quota(self.cloud.api, cluster, offer, count)

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

    def end_nodes(self, work: Work, count: int) -> None:
        """As the protocol says."""
        build.end_nodes(self._building(work), count)

    def ends(self, cluster: CloudCluster) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the machines, with their state now. Empty: no time limit."""
        return ends.guards(self.cloud.api, cluster)

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
