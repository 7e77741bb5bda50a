"""The machines of a cluster: worker pods of a RayCluster, as provider `kubernetes` has them."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from inventories.disk.store import ClusterFolder, Journal
from inventories.machine import Machine
from provision.errors import ProvisionError
from provision.kubernetes import objects, operators, record
from provision.kubernetes.api import POD, Api, connect
from provision.kubernetes.pods import Pods, rank_of, state_of, undo
from provision.kubernetes.record import KubernetesCluster
from provision.provider import Leftover
from provision.records import CloudCluster, Offer
from provision.waiting import Clock, Say

GPU_NODES = {objects.GROUP_LABEL: "gpu"}


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Those of one cluster's folder, whose kubeconfig leads there."""

    folder: ClusterFolder
    clock: Clock
    _apis: dict[str, Api] = field(default_factory=dict)
    """One: a client asks a program for its token."""

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
        """Have `count` of them, each with a rank. `context`: of the kubeconfig in the cluster's folder.

        `own_plugin`: NVIDIA's device plug-in is installed by us, as the cloud does not do it.
        """
        known = self._known()
        wanted = known or self._record(cluster, offer, context)
        record.save(self.folder, wanted)
        journal.append("kubernetes objects", namespace=wanted.namespace, count=count)
        api = self._api(wanted)
        plugins = [operators.gpu_plugin(GPU_NODES)] if own_plugin else []
        if wanted.efa:
            plugins.append(operators.efa_plugin(GPU_NODES))
        operators.install(api, self.clock, say, plugins)
        token = self.folder.ray_token()
        pods = Pods(api, wanted, self.clock)
        # Where runs start the machines, the head stays also without any.
        stays = known is not None and (known.count > 0 or cluster.max_count is not None)
        try:
            pods.apply(count, token)
            pods.rank(pods.wait(count, say), count)
        except ProvisionError as error:
            undo(pods, error, known.count if known is not None and stays else None, token, say)
            raise
        record.save(self.folder, replace(wanted, count=count))

    def asked_for(self) -> int | None:
        """How many the RayCluster has to have. None: there is none."""
        pods = self.pods()
        return None if pods is None else pods.asked_for()

    def ask_for(self, count: int) -> None:
        """Have the RayCluster ask for so many; nobody waits for them."""
        known = self._known()
        if known is not None:
            record.save(self.folder, replace(known, count=count))
            Pods(self._api(known), known, self.clock).apply(count, self.folder.ray_token())

    def hosts(self, ranks: Collection[int]) -> tuple[str, ...]:
        """The private addresses of the nodes on which the machines of these ranks are."""
        pods = self.pods()
        workers = () if pods is None else pods.workers()
        return tuple(str(pod["status"].get("hostIP", "")) for pod in workers if rank_of(pod) in ranks)

    def use_python(self, python: str | None) -> None:
        """Have them use that interpreter from now on. None: the one that they have had."""
        known = self._known()
        if known is not None and python not in (None, known.python):
            record.save(self.folder, replace(known, python=python))

    def pods(self) -> Pods | None:
        """They as pods. None: nothing was asked of Kubernetes yet."""
        known = self._known()
        return None if known is None else Pods(self._api(known), known, self.clock)

    def find(self) -> tuple[Machine, ...]:
        """Those that have a rank."""
        pods = self.pods()
        return () if pods is None else pods.found()

    def refresh(self, machine: Machine) -> Machine:
        """The machine with its state."""
        known = self._known()
        if known is None:
            return replace(machine, state="unknown")
        pod = self._api(known).get(POD, machine.host, known.namespace)
        return replace(machine, state="gone" if pod is None else state_of(pod))

    def remove(self, say: Say) -> tuple[Leftover, ...]:
        """Remove their namespace, so that what Kubernetes made for them goes while something is there to do it."""
        pods = self.pods()
        return () if pods is None else pods.remove(say)

    def _known(self) -> KubernetesCluster | None:
        return record.load(
            self.folder, rebuild=f"`gpuctl down --cluster {self.folder.name}` removes all of it."
        )

    def _api(self, known: KubernetesCluster) -> Api:
        if known.context not in self._apis:
            found = connect(known.context, kubeconfig=self.folder.kubeconfig_path, clock=self.clock)
            self._apis[known.context] = found
        return self._apis[known.context]

    def _record(self, cluster: CloudCluster, offer: Offer, context: str) -> KubernetesCluster:
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
