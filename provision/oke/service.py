"""Provider `oke`: Kubernetes on Oracle's OKE, created and removed. A `KubernetesService`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from inventories.errors import InvalidInput
from provision.errors import Capacity, CreateFailed, Denied, ProvisionError, Quota
from provision.findings import Finding, refusal, run_checks
from provision.oci import checks
from provision.oci.infrastructure import network, security_group
from provision.oci.resources.resource_types import KUBERNETES_KINDS, list_kind
from provision.oke import offers, requests, tokens
from provision.oke.cloud import OkeCloud
from provision.oke.cloud import connect as connect_cloud
from provision.oke.control_plane import WORKING, ControlPlane
from provision.oke.node_pools import NodePools
from provision.oke.traits import TRAITS
from provision.records import CloudCluster, EndGuard, Offer, Target
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.rented.managed_kubernetes.provider import ManagedKubernetes
from provision.rented.managed_kubernetes.service import CreateContext
from provision.rented.managed_kubernetes.zones import end_machines, in_first_zone
from provision.waiting import Clock

COMMAND = "oke-token"
"""The command of gpuctl that prints a credential."""


class OkeService:
    """One account, in one region and compartment."""

    def __init__(self, cloud: OkeCloud, clock: Clock) -> None:
        self.cloud = cloud
        self._clock = clock
        self._ids: dict[str, str] = {}
        """OCID of the control plane, by the cluster's id."""

    def offer(self, cluster: CloudCluster) -> Offer:
        """Return the shape and the domains that have it."""
        view = self._plane(cluster).find()
        version = None if view is None else view["kubernetesVersion"]
        return offers.find(self.cloud.api, cluster, version=version)

    def refuse_over_quota(self, cluster: CloudCluster, offer: Offer, count: int, running: int) -> None:
        """Raise NoCapacity if the account's limits leave no room: OCI reports the number that is left."""
        offers.refuse_over_quota(cluster, offer, count - running)

    def server(self, cluster: CloudCluster) -> ApiServer | None:
        """Return the API server. `None`: no working control plane."""
        plane = self._plane(cluster)
        view = plane.find()
        if view is None or view["lifecycleState"] not in WORKING:
            return None
        self._ids[cluster.id] = view["id"]
        return plane.server(view["id"])

    def allowed_cidrs(self, cluster: CloudCluster) -> tuple[str, ...] | None:
        """Return the address ranges that reach the API server. `None`: no control plane yet."""
        return security_group.allowed_cidrs(self.cloud.api, cluster, requests.API_PORT)

    def make_control_plane(self, context: CreateContext) -> ApiServer:
        """Make the network, the control plane and its add-on, in this order."""
        api, cluster = self.cloud.api, context.cluster
        plane = ControlPlane(api=api, clock=self._clock, cluster=cluster, say=context.say)
        with context.network():
            ids = self._network(context)
        context.say(f"control plane {cluster.kubernetes_name} …")
        body = requests.control_plane(cluster, context.offer.facts["version"], ids)
        cluster_id = plane.ensure(body, context.ensure)
        plane.wait_active(cluster_id)
        plane.ensure_addon(cluster_id, context.ensure)
        self._ids[cluster.id] = cluster_id
        return plane.server(cluster_id)

    def make_nodes(self, context: CreateContext, count: int) -> None:
        """Make both node pools with their machines."""
        api, cluster, offer, ensure = self.cloud.api, context.cluster, context.offer, context.ensure
        pools = self._pools(context)
        ids = {**self._network(context), "cluster": self._id(cluster)}
        body = requests.cpu_pool(cluster, offer.facts, offer.zones[0].name, ids)
        cpu = pools.ensure(body, ensure)
        # First, as machines with GPUs cost more than the wait for this one.
        try:
            pools.wait_running(cpu, requests.CPU_POOL, 1)
        except (Capacity, Quota, CreateFailed):
            self.end_nodes(context, context.staying)
            if not context.staying:
                pools.remove(requests.CPU_POOL)  # or it would start its machine later
            raise

        def make(zone: str) -> None:
            name, zone_ids = requests.gpu_pool_name(zone), dict(ids)
            failed = pools.find(name)
            if failed and failed["lifecycleState"] == "FAILED" and not context.staying:
                pools.remove(name)
            if offer.facts["compute_cluster"]:
                zone_ids["compute_cluster"] = network.compute_cluster(api, cluster, zone, ensure)
            body = requests.gpu_pool(cluster, offer, count, zone, zone_ids)
            pool = {"id": pools.ensure(body, ensure), "name": name}
            pools.scale(pool, count, staying_addresses=context.staying_addresses)
            pools.wait_running(pool["id"], name, count)

        in_first_zone(
            context,
            pools,
            requests.gpu_pool_name,
            count,
            make=make,
            lack=f"OCI has not {count} {offer.shape}",
        )

    def end_nodes(self, context: CreateContext, count: int) -> None:
        """Scale the pools with GPUs down to `count` machines, and wait until the others have ended."""
        end_machines(context, self._pools(context), count)

    def end_guards(self, cluster: CloudCluster) -> tuple[EndGuard, ...]:  # noqa: ARG002
        """Return nothing: OKE has no mechanism that ends the machines."""
        return ()

    def token(self, cluster: CloudCluster) -> str:
        """Return a token for the API server, without a request."""
        return tokens.make(self.cloud.api.credentials, self._id(cluster))[0]

    def token_command(self, cluster: CloudCluster) -> list[str]:
        """Return the words after `gpuctl` that print a credential."""
        credentials = self.cloud.api.credentials
        profile = ["--profile", credentials.profile] if credentials.profile else []
        return [COMMAND, "--cluster-id", self._id(cluster), "--region", credentials.region, *profile]

    def findings(self, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        """Return the findings of `doctor`, the plainest first."""
        todo: dict[str, Callable[[], Finding]] = {
            "permissions to read": self._reading,
            "permissions to create": self._creating,
            f"shape and limits for {count} {cluster.shape}": lambda: self._shape(cluster, count),
        }
        return (checks.sdk(), *run_checks(todo))

    def _reading(self) -> Finding:
        try:
            for kind in KUBERNETES_KINDS:
                list_kind(self.cloud.api, kind)
        except Denied as error:
            fix = "Ask whoever runs the tenancy to allow it."
            return Finding(ok=False, detail=str(error), fix=fix)
        detail = "Clusters, node pools, load balancers and volumes can be listed."
        return Finding(ok=True, detail=detail)

    def _creating(self) -> Finding:
        """Return the statements that creating and deleting need, as OCI does not simulate calls."""
        statements = checks.statements(self.cloud.api, checks.KUBERNETES)
        return Finding(ok=None, detail=f"OCI can't be asked. A group needs\n{statements}")

    def _shape(self, cluster: CloudCluster, count: int) -> Finding:
        try:
            offer = offers.find(self.cloud.api, cluster)
            offers.refuse_over_quota(cluster, offer, count)
        except (ProvisionError, InvalidInput) as error:
            return refusal(error)
        zones = ", ".join(str(zone) for zone in offer.zones)
        version = offer.facts["version"]
        return Finding(ok=True, detail=f"{offer.gpus} GPUs each, in {zones}; Kubernetes {version}.")

    def _network(self, context: CreateContext) -> Mapping[str, str]:
        """Make the network, whose group admits the API server's clients and the nodes. Returns its ids."""
        guarded = replace(context.cluster, ssh_port=requests.API_PORT)
        return network.prepare(self.cloud.api, guarded, "", context.ensure).ids

    def _plane(self, cluster: CloudCluster) -> ControlPlane:
        return ControlPlane(api=self.cloud.api, clock=self._clock, cluster=cluster)

    def _pools(self, context: CreateContext) -> NodePools:
        return NodePools(api=self.cloud.api, clock=self._clock, cluster=context.cluster, say=context.say)

    def _id(self, cluster: CloudCluster) -> str:
        """Return the OCID of the existing control plane."""
        if cluster.id not in self._ids:
            view = self._plane(cluster).find()
            assert view is not None, "it has a control plane"
            self._ids[cluster.id] = view["id"]
        return self._ids[cluster.id]


def connect(target: Target, clock: Clock) -> OkeService:
    """Return the account, region and compartment of `target`."""
    return OkeService(connect_cloud(target, clock=clock), clock)


provider = partial(ManagedKubernetes, traits=TRAITS, connect=connect)
"""Returns the provider for one cluster."""
