"""OKE as a `provision.managed_kubernetes.service.KubernetesService`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from provision.errors import Capacity, NoCapacity, Quota
from provision.managed_kubernetes.api_server import ApiServer
from provision.managed_kubernetes.plan import use_or_create
from provision.managed_kubernetes.price import Beside
from provision.managed_kubernetes.service import Work
from provision.oci.infrastructure import network, security_group
from provision.oke import checks, control_plane, names, node_pools, offers, requests, tokens
from provision.oke.cloud import OkeCloud
from provision.oke.cloud import connect as connect_cloud
from provision.oke.description import (
    CONTROL_PLANE_HOURLY_USD,
    CPU_MACHINE_USD,
    CPU_MEMORY_GB,
    CPU_OCPUS,
    CPU_SHAPE,
)
from provision.pricing.prices import Prices

HONOURED = frozenset(
    {"shape", "region", "profile", "compartment", "disk_gb", "spot", "ssh_cidr", "ttl_s", "image"}
)
COMMAND = "oke-token"
"""The command of gpuctl that prints a credential."""


class OkeService:
    """One account, in one region and compartment."""

    name = names.PROVIDER
    honoured = HONOURED
    cluster_kind = "kubernetes-cluster"
    nodes_kind = node_pools.POOL
    own_plugin = False
    cpu_machine = (
        f"{CPU_SHAPE} with {CPU_OCPUS} OCPUs, {CPU_MEMORY_GB} GB and {requests.CPU_DISK_GB} GB of disk"
    )
    lasts = "the first `up` takes about twenty minutes: OKE makes a control plane in ten, and nodes after it"

    def __init__(self, cloud: OkeCloud, clock: Clock) -> None:
        self.cloud = cloud
        self._clock = clock
        self._ids: dict[str, str] = {}
        """By a cluster's id, the OCID of its control plane."""

    def cluster_name(self, cluster: CloudCluster) -> str:
        """As the protocol says."""
        return names.cluster_name(cluster)

    def offer(self, cluster: CloudCluster) -> Offer:
        """As the protocol says."""
        return offers.find(self.cloud.api, cluster)

    def refuse_over_quota(self, cluster: CloudCluster, offer: Offer, count: int) -> None:
        """As the protocol says."""
        offers.refuse_over_quota(cluster, offer, count)

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
        compartment, zone = self.cloud.api.compartment, offer.zones[0].name
        ids = {name: f"<{name}>" for name in ("vcn", "subnet", "nsg", "cluster")}
        if offer.facts["compute_cluster"]:
            ids["compute_cluster"] = "<compute cluster>"
        made: list[tuple[str, requests.Json]] = []
        if self.cluster_kind not in kinds:
            body = requests.control_plane(cluster, compartment, offer.facts["version"], ids)
            made += [("CreateCluster", body), ("InstallAddon", requests.addon())]
        if self.nodes_kind not in kinds:
            made += [
                ("CreateNodePool", requests.cpu_pool(cluster, compartment, offer.facts, zone, ids)),
                ("CreateNodePool", requests.gpu_pool(cluster, compartment, offer, count, zone, ids)),
            ]
        return tuple(PlannedRequest(operation=operation, body=body) for operation, body in made)

    def extras(
        self,
        cluster: CloudCluster,  # noqa: ARG002 - another cloud looks at it
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

    def server(self, cluster: CloudCluster) -> ApiServer | None:
        """As the protocol says."""
        view = control_plane.find(self.cloud.api, cluster)
        if view is None or view["lifecycleState"] not in control_plane.WORKS:
            return None
        self._ids[cluster.id] = view["id"]
        return control_plane.server(self.cloud.api, view["id"])

    def lets_in(self, cluster: CloudCluster) -> tuple[str, ...] | None:
        """As the protocol says."""
        return security_group.lets_in(self.cloud.api, cluster, requests.API_PORT)

    def make_control_plane(self, work: Work) -> ApiServer:
        """As the protocol says."""
        api, cluster = self.cloud.api, work.cluster
        with work.network():
            ids = self._network(work)
        work.say(f"control plane {names.cluster_name(cluster)} …")
        body = requests.control_plane(cluster, api.compartment, work.offer.facts["version"], ids)
        cluster_id = control_plane.ensure(api, self._clock, cluster, body, work.ensure)
        control_plane.wait_active(api, self._clock, cluster, cluster_id, work.say)
        control_plane.ensure_addon(api, cluster_id, work.ensure)
        self._ids[cluster.id] = cluster_id
        return control_plane.server(api, cluster_id)

    def make_nodes(self, work: Work, count: int) -> None:
        """As the protocol says."""
        api, clock, cluster = self.cloud.api, self._clock, work.cluster
        ids = {**self._network(work), "cluster": self._id(cluster)}
        zone = work.offer.zones[0].name
        body = requests.cpu_pool(cluster, api.compartment, work.offer.facts, zone, ids)
        cpu = node_pools.ensure_pool(api, clock, cluster, body, work.ensure)
        self._gpu_pool(work, count, ids)
        node_pools.wait_pool(api, clock, cpu, names.CPU_POOL, work.say)

    def token(self, cluster: CloudCluster) -> str:
        """As the protocol says."""
        return tokens.make(self.cloud.api.credentials, self._id(cluster))[0]

    def token_command(self, cluster: CloudCluster) -> list[str]:
        """As the protocol says."""
        found = self.cloud.api.credentials
        profile = ["--profile", found.profile] if found.profile else []
        return [COMMAND, "--cluster-id", self._id(cluster), "--region", found.region, *profile]

    def findings(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """As the protocol says."""
        return checks.check(self.cloud.api, cluster, count)

    def _network(self, work: Work) -> Mapping[str, str]:
        """Ids: `vcn`, `subnet`, `nsg`. The group lets in to the API server, and lets nodes meet each other."""
        guarded = replace(work.cluster, ssh_port=requests.API_PORT)
        return network.prepare(self.cloud.api, guarded, "", work.ensure).ids

    def _gpu_pool(self, work: Work, count: int, ids: Mapping[str, str]) -> None:
        """All machines with GPUs are in one domain: where there are some already, else the first that has them."""
        api, clock, cluster, offer = self.cloud.api, self._clock, work.cluster, work.offer
        there = {view["name"] for view in node_pools.pools(api, cluster)}
        begun = [zone for zone in offer.zones if names.gpu_pool(zone.name) in there]
        refused: list[str] = []
        for zone in begun or offer.zones:
            name = names.gpu_pool(zone.name)
            own = dict(ids)
            if offer.facts["compute_cluster"]:
                own["compute_cluster"] = network.compute_cluster(api, cluster, zone.name, work.ensure)
            body = requests.gpu_pool(cluster, api.compartment, offer, count, zone.name, own)
            try:
                pool = node_pools.ensure_pool(api, clock, cluster, body, work.ensure)
                node_pools.scale(api, pool, count)
                return node_pools.wait_pool(api, clock, pool, name, work.say)
            except (Capacity, Quota) as error:
                refused.append(f"{zone.name}: {error}")
                work.say(f"no machines in {zone.name}: {error}")
                if view := node_pools.find(api, cluster, name):
                    node_pools.remove(api, clock, view, work.say)
        raise NoCapacity(
            f"OCI has not {count} {offer.shape} together. {' '.join(refused)} Try later, another --region or shape."
        )

    def _id(self, cluster: CloudCluster) -> str:
        """The OCID of the control plane, which is there."""
        if cluster.id not in self._ids:
            view = control_plane.find(self.cloud.api, cluster)
            assert view is not None, "it has a control plane"
            self._ids[cluster.id] = view["id"]
        return self._ids[cluster.id]


def connect(target: Target, clock: Clock) -> OkeService:
    """The account, region and compartment of `target`."""
    return OkeService(connect_cloud(target, clock=clock), clock)
