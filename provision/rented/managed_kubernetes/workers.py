"""The machines of a Kubernetes service: worker pods of a RayCluster, as provider `kubernetes` has them."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from inventories.disk.store import ClusterFolder, Journal
from inventories.machine import Machine
from provision.errors import ProvisionError
from provision.kubernetes import objects, operators, record
from provision.kubernetes.api import POD, Api, connect
from provision.kubernetes.pods import Pods, rank_of, roll_back, state_of
from provision.kubernetes.record import KubernetesCluster
from provision.provider import Leftover
from provision.records import CloudCluster, Offer
from provision.waiting import Clock, Say

GPU_NODES = {objects.GROUP_LABEL: "gpu"}


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The worker pods of one cluster's folder, whose kubeconfig leads to the API server."""

    folder: ClusterFolder
    clock: Clock
    _apis: dict[str, Api] = field(default_factory=dict)
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
        known = self._known()
        pod_cluster = known or _new_record(cluster, offer, context)
        record.save(self.folder, pod_cluster)
        journal.append("kubernetes objects", namespace=pod_cluster.namespace, count=count)
        api = self._api(pod_cluster)
        plugins = [operators.gpu_plugin(GPU_NODES)] if own_plugin else []
        if pod_cluster.efa:
            plugins.append(operators.efa_plugin(GPU_NODES))
        operators.install(api, self.clock, say, plugins)
        token = self.folder.ray_token()
        pods = Pods(api, pod_cluster, self.clock)
        # If runs start the machines, the head stays also without workers.
        head_stays = known is not None and (known.count > 0 or cluster.max_count is not None)
        try:
            pods.apply(count, token)
            pods.rank(pods.wait(count, say), count)
        except ProvisionError as error:
            roll_back(pods, error, known.count if known is not None and head_stays else None, token, say)
            raise
        record.save(self.folder, replace(pod_cluster, count=count))

    def requested_count(self) -> int | None:
        """Return the number of workers that the RayCluster requests. `None`: no RayCluster."""
        pods = self.pods()
        return None if pods is None else pods.requested_count()

    def request_count(self, count: int) -> None:
        """Change the number of workers that the RayCluster requests, without a wait."""
        known = self._known()
        if known is not None:
            record.save(self.folder, replace(known, count=count))
            Pods(self._api(known), known, self.clock).apply(count, self.folder.ray_token())

    def hosts(self, ranks: Collection[int]) -> tuple[str, ...]:
        """Return the private addresses of the nodes on which the machines of these ranks are."""
        pods = self.pods()
        workers = () if pods is None else pods.workers()
        return tuple(str(pod["status"].get("hostIP", "")) for pod in workers if rank_of(pod) in ranks)

    def use_python(self, python: str | None) -> None:
        """Record another interpreter for the workers. `None`: no change."""
        known = self._known()
        if known is not None and python not in (None, known.python):
            record.save(self.folder, replace(known, python=python))

    def pods(self) -> Pods | None:
        """Return the workers as pods. `None`: Kubernetes has no object of the cluster yet."""
        known = self._known()
        return None if known is None else Pods(self._api(known), known, self.clock)

    def find(self) -> tuple[Machine, ...]:
        """Return the workers that have a rank."""
        pods = self.pods()
        return () if pods is None else pods.ranked()

    def refresh(self, machine: Machine) -> Machine:
        """Return the machine with its state."""
        known = self._known()
        if known is None:
            return replace(machine, state="unknown")
        pod = self._api(known).get(POD, machine.host, known.namespace)
        return replace(machine, state="gone" if pod is None else state_of(pod))

    def remove(self, say: Say) -> tuple[Leftover, ...]:
        """Remove the namespace while Kubernetes' controllers can still remove its contents."""
        pods = self.pods()
        return () if pods is None else pods.remove(say)

    def _known(self) -> KubernetesCluster | None:
        rebuild = f"`gpuctl down --cluster {self.folder.name}` removes all of it."
        return record.load(self.folder, rebuild=rebuild)

    def _api(self, known: KubernetesCluster) -> Api:
        if known.context not in self._apis:
            self._apis[known.context] = connect(
                known.context, kubeconfig=self.folder.kubeconfig_path, clock=self.clock
            )
        return self._apis[known.context]


def _new_record(cluster: CloudCluster, offer: Offer, context: str) -> KubernetesCluster:
    return KubernetesCluster(
        name=cluster.name,
        id=cluster.id[:6],
        owner=cluster.owner,
        created_at=cluster.created_at,
        context=context,
        server="",
        shape=cluster.shape,
        gpus=offer.gpus,
        cpus=int(offer.facts.get("vcpus") or 0),
        efa=int(offer.facts.get("efa_in_pods") or 0),
        tainted=tuple(offer.facts.get("tainted") or ()),
        image=cluster.image or objects.default_image(offer.gpus),
    )
