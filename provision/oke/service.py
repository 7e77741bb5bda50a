"""OKE as a `provision.rented.managed_kubernetes.service.KubernetesService`."""

from collections.abc import Mapping
from dataclasses import replace

from provision.errors import Capacity, CreateFailed, Quota
from provision.findings import Finding
from provision.oci.infrastructure import network, security_group
from provision.oke import checks, control_plane, names, node_pools, offers, requests, tokens
from provision.oke.cloud import OkeCloud
from provision.oke.cloud import connect as connect_cloud
from provision.oke.facts import FACTS
from provision.records import CloudCluster, EndGuard, Offer, Target
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.rented.managed_kubernetes.service import Work
from provision.rented.managed_kubernetes.zones import end_machines, in_first_zone
from provision.rented.teardown import BLOCKED_TIMEOUT_S
from provision.waiting import Clock

COMMAND = "oke-token"
"""The command of gpuctl that prints a credential."""


class OkeService:
    """One account, in one region and compartment."""

    facts = FACTS

    def __init__(self, cloud: OkeCloud, clock: Clock) -> None:
        self.cloud = cloud
        self._clock = clock
        self._ids: dict[str, str] = {}
        """By a cluster's id, the OCID of its control plane."""

    def offer(self, cluster: CloudCluster) -> Offer:
        """As the protocol says."""
        view = control_plane.find(self.cloud.api, cluster)
        return offers.find(
            self.cloud.api, cluster, version=None if view is None else view["kubernetesVersion"]
        )

    def refuse_over_quota(self, cluster: CloudCluster, offer: Offer, count: int, have: int) -> None:
        """As the protocol says. What OCI tells is how much is left."""
        offers.refuse_over_quota(cluster, offer, count - have)

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
        control_plane.ensure_addon(api, self._clock, cluster, cluster_id, work.ensure, work.say)
        self._ids[cluster.id] = cluster_id
        return control_plane.server(api, cluster_id)

    def make_nodes(self, work: Work, count: int) -> None:
        """As the protocol says."""
        api, clock, cluster = self.cloud.api, self._clock, work.cluster
        ids = {**self._network(work), "cluster": self._id(cluster)}
        zone = work.offer.zones[0].name
        body = requests.cpu_pool(cluster, api.compartment, work.offer.facts, zone, ids)
        cpu = node_pools.ensure_pool(api, clock, cluster, body, work.ensure, work.say)
        # First, as machines with GPUs cost more than waiting for it.
        try:
            node_pools.wait_pool(api, clock, cpu, names.CPU_POOL, 1, work.say)
        except (Capacity, Quota, CreateFailed):
            self.end_nodes(work, work.kept)
            if not work.kept and (pool := node_pools.find(api, cluster, names.CPU_POOL)):
                node_pools.remove(api, clock, pool, work.say)  # or it would start its machine later
            raise
        self._gpu_pool(work, count, ids)

    def end_nodes(self, work: Work, count: int) -> None:
        """As the protocol says."""
        api, clock, say = self.cloud.api, self._clock, work.say
        pools = {view["name"]: view for view in node_pools.with_gpus(api, work.cluster)}
        end_machines(
            node_pools.sizes(pools.values()),
            count,
            scale=lambda name, few: node_pools.scale(api, clock, pools[name], few, say, stay=work.stay),
            wait_gone=lambda name, few: node_pools.wait_gone(api, clock, pools[name], few, say),
        )

    def ends(self, cluster: CloudCluster) -> tuple[EndGuard, ...]:  # noqa: ARG002 - OKE has none
        """Return the mechanisms that end the machines, with their state now. Empty: OKE has none."""
        return ()

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
        api, clock, cluster, offer, say = self.cloud.api, self._clock, work.cluster, work.offer, work.say

        def make(zone: str) -> None:
            name, own = names.gpu_pool(zone), dict(ids)
            failed = node_pools.find(api, cluster, name)
            if failed and failed["lifecycleState"] == "FAILED" and not work.kept:
                node_pools.remove(api, clock, failed, say)  # so that it is made anew
            if offer.facts["compute_cluster"]:
                own["compute_cluster"] = network.compute_cluster(api, cluster, zone, work.ensure)
            body = requests.gpu_pool(cluster, api.compartment, offer, count, zone, own)
            pool = {"id": node_pools.ensure_pool(api, clock, cluster, body, work.ensure, say), "name": name}
            node_pools.scale(api, clock, pool, count, say, stay=work.stay)
            node_pools.wait_pool(api, clock, pool["id"], name, count, say)

        def scale(name: str, few: int) -> None:
            if pool := node_pools.find(api, cluster, name):
                node_pools.scale(api, clock, pool, few, say, stay=work.stay, timeout_s=BLOCKED_TIMEOUT_S)

        def remove(name: str) -> None:
            if pool := node_pools.find(api, cluster, name):
                node_pools.remove(api, clock, pool, say)

        in_first_zone(
            work,
            node_pools.sizes(node_pools.with_gpus(api, cluster)),
            names.gpu_pool,
            count,
            make=make,
            scale=scale,
            remove=remove,
            what=f"OCI has not {count} {offer.shape}",
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
