"""The machines of a Kubernetes service: worker pods of a RayCluster, as provider `kubernetes` has them."""

from collections.abc import Collection
from dataclasses import replace

from inventories import codec
from inventories.disk.store import ClusterFolder, Journal
from provision.errors import ProvisionError
from provision.kubernetes import operators, ray_cluster, record
from provision.kubernetes.adoption import rebuild
from provision.kubernetes.api import Api, connect
from provision.kubernetes.pods import PodMachines, Pods, rank_of, roll_back
from provision.kubernetes.record import KubernetesCluster
from provision.records import CloudCluster, Offer
from provision.waiting import Clock, Say

GPU_NODES = {ray_cluster.GROUP_LABEL: "gpu"}


class Workers(PodMachines):
    """The worker pods of one cluster's folder, whose kubeconfig leads to the API server."""

    def __init__(self, folder: ClusterFolder, clock: Clock) -> None:
        super().__init__(folder, clock)
        self.rebuild = f"`gpuctl down --cluster {folder.name}` removes all of it."
        self._apis: dict[str, Api] = {}
        """Cached: each new client would run the credential plug-in again."""

    def create(
        self,
        cluster: CloudCluster,
        offer: Offer,
        count: int,
        journal: Journal,
        say: Say,
        *,
        context: str,
        own_plugin: bool,
    ) -> None:
        """Make `count` workers, each with a rank.

        `context`: of the kubeconfig in the cluster's folder. `own_plugin`: gpuctl installs NVIDIA's device plug-in.
        """
        known = self._record()
        pod_cluster = replace(
            known
            or (
                KubernetesCluster(
                    name=cluster.name,
                    id=pod_cluster_id(cluster.id),
                    owner=cluster.owner,
                    created_at=cluster.created_at,
                    context=context,
                    server="",
                    shape=cluster.shape,
                    gpus=offer.gpus,
                    cpus=int(offer.facts.get("vcpus") or 0),
                    efa=int(offer.facts.get("efa_in_pods") or 0),
                    tainted=tuple(offer.facts.get("tainted") or ()),
                    image=cluster.image or ray_cluster.default_image(offer.gpus),
                )
            ),
            request=codec.to_json(cluster),
        )
        record.save(self._folder, pod_cluster)
        journal.append("kubernetes objects", namespace=pod_cluster.namespace, count=count)
        api = self._api_of(pod_cluster)
        plugins = [operators.gpu_plugin(GPU_NODES)] if own_plugin else []
        if pod_cluster.efa:
            plugins.append(operators.efa_plugin(GPU_NODES))
        operators.install(api, self._clock, say, plugins)
        token = self._folder.ray_token()
        pods = Pods(api, pod_cluster, self._clock)
        # If runs start the machines, the head stays also without workers.
        head_stays = known is not None and (known.count > 0 or cluster.max_count is not None)
        try:
            pods.apply(count, token)
            pods.rank(pods.wait(count, say), count)
        except ProvisionError as error:
            roll_back(pods, error, known.count if known is not None and head_stays else None, token, say)
            raise
        record.save(self._folder, replace(pod_cluster, count=count))

    def adopt(self, context: str, cluster_id: str) -> KubernetesCluster:
        """Rebuild the record of the pods of another computer's cluster. `context`: of the kubeconfig here."""
        api = connect(context, kubeconfig=self._folder.kubeconfig_path, clock=self._clock)
        return rebuild(api, self._folder, cluster_id)

    def requested_count(self) -> int | None:
        """Return the number of workers that the RayCluster requests. `None`: no RayCluster."""
        pods = self.pods()
        return None if pods is None else pods.requested_count()

    def request_count(self, count: int) -> None:
        """Change the number of workers that the RayCluster requests, without a wait."""
        known = self._record()
        if known is not None:
            record.save(self._folder, replace(known, count=count))
            Pods(self._api_of(known), known, self._clock).apply(count, self._folder.ray_token())

    def hosts(self, ranks: Collection[int]) -> tuple[str, ...]:
        """Return the private addresses of the nodes on which the machines of these ranks are."""
        pods = self.pods()
        workers = () if pods is None else pods.workers()
        return tuple(str(pod["status"].get("hostIP", "")) for pod in workers if rank_of(pod) in ranks)

    def use_python(self, python: str | None) -> None:
        """Record another interpreter for the workers. `None`: no change."""
        known = self._record()
        if known is not None and python not in (None, known.python):
            record.save(self._folder, replace(known, python=python))

    def _api_of(self, record: KubernetesCluster) -> Api:
        if record.context not in self._apis:
            self._apis[record.context] = connect(
                record.context, kubeconfig=self._folder.kubeconfig_path, clock=self._clock
            )
        return self._apis[record.context]


def pod_cluster_id(cluster_id: str) -> str:
    """Return the id of the pods' cluster, in the name of its namespace."""
    return cluster_id[:6]
