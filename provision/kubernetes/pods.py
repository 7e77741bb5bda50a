"""A cluster's RayCluster in a Kubernetes cluster, and its worker pods: creation, wait, removal."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine, MachineState
from provision.errors import CreateFailed, Denied, LeftBehind, ProvisionError
from provision.kubernetes import ray_cluster
from provision.kubernetes.api import EVENT, NAMESPACE, NETWORK_POLICY, POD, RAY_CLUSTER, SECRET, Api
from provision.kubernetes.capacity import OVER
from provision.kubernetes.pod_stages import DEADLINES_S, PodStage, Stage, stage_of
from provision.kubernetes.record import REBUILD, KubernetesCluster, load
from provision.provider import Leftover
from provision.waiting import Clock, Progress, Say, poll, quiet

GONE_DEADLINE_S = 300.0
MAX_EVENTS = 5
"""Events of a pod in an error: the last ones."""
POLL_S = 3.0


@dataclass(frozen=True)
class Pods:
    """The objects of one cluster."""

    api: Api
    cluster: KubernetesCluster
    clock: Clock

    def workers(self) -> list[dict[str, Any]]:
        """Return the worker pods that KubeRay does not replace, ranked pods first."""
        return sorted((pod for pod in self._pods(ray_cluster.WORKERS) if _in_service(pod)), key=_order)

    def apply(self, count: int, token: str) -> None:
        """Create or update the namespace, the token and the RayCluster with `count` workers.

        Of too many workers, unranked pods end first, then the highest ranks: KubeRay would end any.
        """
        self.api.apply(NAMESPACE, ray_cluster.namespace(replace(self.cluster, count=count)))
        self.api.apply(NETWORK_POLICY, ray_cluster.network_policy(self.cluster))
        self.api.apply(SECRET, ray_cluster.secret(self.cluster, token))
        workers = self.workers()
        excess = sorted(workers, key=_order, reverse=True)[: max(0, len(workers) - count)]
        names = [pod["metadata"]["name"] for pod in excess]
        self.api.apply(RAY_CLUSTER, ray_cluster.ray_cluster(self.cluster, count, delete=names))

    def requested_count(self) -> int | None:
        """Return the number of workers that the RayCluster requests. `None`: no RayCluster."""
        described = self.api.get(RAY_CLUSTER, ray_cluster.RAY_CLUSTER_NAME, self.cluster.namespace)
        return None if described is None else int(described["spec"]["workerGroupSpecs"][0]["replicas"])

    def wait(self, count: int, say: Say) -> list[dict[str, Any]]:
        """Wait until `count` workers and the head are ready; say the reasons of the wait. Returns the workers.

        Raises NoCapacity if no node has room, and CreateFailed if a pod can't start or takes too long.
        """
        progress = Progress(self.clock, say)
        since: dict[str, tuple[Stage, float]] = {}
        reported: set[str] = set()
        for _ in poll(self.clock, longest_s=POLL_S):
            now = self.clock.now()
            # KubeRay replaces pods that have ended.
            pods = [pod for pod in self._pods(ray_cluster.PODS) if _in_service(pod)]
            stages = {pod["metadata"]["name"]: self._stage(pod) for pod in pods}
            if len(pods) == count + 1 and all(stage.stage == "ready" for stage in stages.values()):
                break
            for name, stage in stages.items():
                if name not in since or since[name][0] != stage.stage:
                    since[name] = (stage.stage, now)
                if stage.reason not in reported and stage.stage != "ready":
                    reported.add(stage.reason)
                    say(f"{name} waits for {stage.reason}")
                if stage.fatal or now - since[name][1] > DEADLINES_S[stage.stage] > 0:
                    lines = self._last_events(self.api.get(POD, name, self.cluster.namespace))
                    raise stage.error(name, now - since[name][1], lines)
            missing = count + 1 - len(pods)
            if _overdue(since, "", missing > 0, now):
                raise self._not_made(missing, count + 1)
            if _overdue(since, "surplus", missing < 0, now):
                raise CreateFailed(
                    f"KubeRay keeps {len(pods)} pods in {self.cluster.namespace}, where {count + 1} are asked "
                    f"for: {', '.join(sorted(stages))}. Is its operator at work?"
                )
            ready = sum(stage.stage == "ready" for stage in stages.values())
            progress.tell(f"waiting for the pods: {ready} of {count + 1} are ready")
        heads = {"ray.io/node-type": "head"}.items()
        workers = (pod for pod in pods if not heads <= (pod["metadata"].get("labels") or {}).items())
        return sorted(workers, key=_order)

    def rank(self, workers: Sequence[Mapping[str, Any]], count: int) -> None:
        """Give each unranked worker a free rank, by a label: the label decides which machine a pod is."""
        used = {rank for pod in workers if (rank := rank_of(pod)) is not None and rank < count}
        free = iter(sorted(set(range(count)) - used))
        for pod in workers:
            if (rank := rank_of(pod)) is None or rank >= count:
                name = pod["metadata"]["name"]
                self.api.label(POD, name, self.cluster.namespace, {ray_cluster.RANK: str(next(free))})

    def ranked(self) -> tuple[Machine, ...]:
        """Return the machines: the worker pods that have a rank, by it."""
        return tuple(
            self.machine(pod, python=self.cluster.python)
            for pod in self.workers()
            if rank_of(pod) is not None
        )

    def machines(self, count: int, *, python: str | None = None) -> tuple[Machine, ...]:
        """Return all machines, by rank. Raises CreateFailed if a pod ended since it was ready."""
        ranked = [pod for pod in self.workers() if (rank := rank_of(pod)) is not None and rank < count]
        if len(ranked) != count:
            raise CreateFailed(
                f"{count - len(ranked)} of {count} pods went as soon as they were ready. Try again."
            )
        return tuple(self.machine(pod, python=python) for pod in ranked)

    def remove(self, say: Say) -> tuple[Leftover, ...]:
        """Remove the namespace with its contents. Returns the rest at the deadline, with the server's reason."""
        name = self.cluster.namespace

        def left(reason: str) -> tuple[Leftover, ...]:
            return (Leftover(kind="namespace", id=name, reason=reason),)

        try:
            namespace = self.api.get(NAMESPACE, name)
            if namespace is None:
                return ()
            if not ray_cluster.is_of(namespace, self.cluster):
                return left(
                    f"It has not the label {ray_cluster.CLUSTER_ID}={self.cluster.id}, so it is left alone."
                )
            self.api.delete(RAY_CLUSTER, ray_cluster.RAY_CLUSTER_NAME, name)
            self.api.delete(NAMESPACE, name)
        except Denied as error:
            return left(str(error))
        progress = Progress(self.clock, say)
        for _ in poll(self.clock, GONE_DEADLINE_S, longest_s=POLL_S):
            namespace = self.api.get(NAMESPACE, name)
            if namespace is None:
                return ()
            progress.tell(f"waiting for the namespace {name} to go")
        return left(blocked_by(namespace))

    def replacements(self, machines: Sequence[Machine]) -> dict[int, dict[str, Any]]:
        """Return the ready pods that are no machine yet, by the ranks of lost machines that they can take."""
        return replacements(machines, self.workers())

    def replace_lost(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """Return the machines, lost ones replaced by ready pods, which get their ranks."""
        new = self.replacements(machines)
        for rank, pod in new.items():
            self.api.label(
                POD, pod["metadata"]["name"], self.cluster.namespace, {ray_cluster.RANK: str(rank)}
            )
        return tuple(
            self.machine(new[machine.rank], rank=machine.rank, python=machine.python)
            if machine.rank in new
            else machine
            for machine in machines
        )

    def readiness(self, machines: Sequence[Machine]) -> tuple[list[Machine], list[str]]:
        """Return the ready machines, and a clause on the wait of each pod that is not ready."""
        stages = {pod["metadata"]["name"]: self._stage(pod) for pod in self.workers()}
        ready = {name for name, stage in stages.items() if stage.stage == "ready"}
        waits = [f"{name} waits for {stage.reason}" for name, stage in stages.items() if name not in ready]
        return [machine for machine in machines if machine.host in ready], waits

    def lost(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """Return the machines whose pods have ended, or are about to."""
        return tuple(_lost(machines, self.workers()))

    def machine(
        self, pod: Mapping[str, Any], *, rank: int | None = None, python: str | None = None
    ) -> Machine:
        """Return a worker pod as a machine. `rank`: `None` for the rank of its label."""
        name, rank = pod["metadata"]["name"], rank_of(pod) if rank is None else rank
        assert rank is not None
        return Machine(
            name=f"{self.cluster.name}-{rank}",
            rank=rank,
            state=state_of(pod),
            host=name,
            user="ray",
            transport="pod",
            context=self.api.context,
            private_ip=str(pod["status"].get("podIP", "")),
            gpus=self.cluster.gpus,
            id=f"{self.cluster.namespace}/{name}",
            shape=self.cluster.shape,
            python=python,
            launched_at=pod["metadata"].get("creationTimestamp"),
        )

    def _pods(self, selector: str) -> list[dict[str, Any]]:
        return self.api.list(POD, self.cluster.namespace, labelSelector=selector)

    def _stage(self, pod: Mapping[str, Any]) -> PodStage:
        stage = stage_of(pod)
        # Events cost a request, and are only about pods that wait for a container.
        needs_events = stage.stage in ("init", "start") and not stage.fatal
        return stage_of(pod, self._events(pod)) if needs_events else stage

    def _events(self, of_object: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return the events of an object, oldest first. `None`: the user may not list them."""
        selector = f"involvedObject.name={of_object['metadata']['name']}"
        try:
            events = self.api.list(EVENT, self.cluster.namespace, fieldSelector=selector)
        except Denied:
            return None
        return sorted(
            events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")
        )

    def _not_made(self, missing: int, count: int) -> CreateFailed:
        """Return the error for pods that KubeRay does not make, with its events about the RayCluster."""
        name, namespace = ray_cluster.RAY_CLUSTER_NAME, self.cluster.namespace
        lines = self._last_events(self.api.get(RAY_CLUSTER, name, namespace))
        head = f"KubeRay has not made {missing} of {count} pods within {DEADLINES_S['start']:.0f} s."
        if not lines:
            head += (
                f" Is its operator at work? `kubectl --context {self.api.context} describe raycluster {name} -n "
                f"{namespace}` shows what it says."
            )
        return CreateFailed("\n".join([head, *lines]))

    def _last_events(self, of_object: Mapping[str, Any] | None) -> list[str]:
        events = (self._events(of_object) or [])[-MAX_EVENTS:] if of_object else []
        return [f"  {event.get('reason')}: {event.get('message')}" for event in events]


class PodMachines(ABC):
    """The machines of a cluster's folder, which are pods."""

    rebuild = REBUILD
    """Advice for a lost record."""

    def __init__(self, folder: ClusterFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    @abstractmethod
    def _api_of(self, record: KubernetesCluster) -> Api:
        """Return the API server of the record."""

    def pods(self) -> Pods | None:
        """Return the machines as pods. `None`: Kubernetes has no object of the cluster yet."""
        record = self._record()
        return None if record is None else Pods(self._api_of(record), record, self._clock)

    def find(self) -> tuple[Machine, ...]:
        """Return the worker pods that have a rank, whatever our inventory says."""
        pods = self.pods()
        return () if pods is None else pods.ranked()

    def refresh(self, machine: Machine) -> Machine:
        """Return the machine with its state."""
        record = self._record()
        if record is None:
            return replace(machine, state="unknown")
        pod = self._api_of(record).get(POD, machine.host, record.namespace)
        return replace(machine, state="gone" if pod is None else state_of(pod))

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """Remove the namespace with all objects."""
        pods = self.pods()
        return () if pods is None else pods.remove(say)

    def _record(self) -> KubernetesCluster | None:
        return load(self._folder, rebuild=self.rebuild)


def _overdue(since: dict[str, tuple[Stage, float]], key: str, lasts: bool, now: float) -> bool:
    """Return whether a state lasts for too long; `since` has its begin."""
    if not lasts:
        since.pop(key, None)
        return False
    return now - since.setdefault(key, ("start", now))[1] > DEADLINES_S["start"]


def roll_back(pods: Pods, error: BaseException, before: int | None, token: str, say: Say) -> None:
    """Return a cluster to its state before `error`: a head and `before` machines. `None`: no object at all.

    Raises LeftBehind if that fails, too.
    """
    say("removing what was begun …")
    try:
        if before is not None:
            pods.apply(before, token)
            return
        leftovers = pods.remove(say)
    except ProvisionError as second:
        leftovers = (Leftover(kind="namespace", id=pods.cluster.namespace, reason=str(second)),)
    if leftovers:
        listed = "; ".join(f"{left.kind} {left.id}: {left.reason}" for left in leftovers)
        raise LeftBehind(
            f"{error} What was begun is still there: {listed} `gpuctl down` removes it."
        ) from error


def replacements(machines: Sequence[Machine], workers: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the ready pods that are no machine yet, by the ranks of lost machines that they can take."""
    known = {machine.host for machine in machines}
    lost = [machine.rank for machine in _lost(machines, workers)]
    new = [pod for pod in workers if pod["metadata"]["name"] not in known and stage_of(pod).stage == "ready"]
    ranked = {rank: pod for pod in new if (rank := rank_of(pod)) in lost and rank is not None}
    held = {rank_of(pod) for pod in workers}
    unranked = [pod for pod in new if rank_of(pod) is None]
    return ranked | dict(zip((rank for rank in lost if rank not in held), unranked, strict=False))


def _lost(machines: Sequence[Machine], workers: Sequence[Mapping[str, Any]]) -> list[Machine]:
    names = {pod["metadata"]["name"] for pod in workers}
    return [machine for machine in machines if machine.host not in names]


def rank_of(pod: Mapping[str, Any]) -> int | None:
    """Return the node rank in the pod's label. `None`: no such label."""
    text = (pod["metadata"].get("labels") or {}).get(ray_cluster.RANK, "")
    return int(text) if text.isdecimal() else None


def state_of(pod: Mapping[str, Any]) -> MachineState:
    """Return the machine's state."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    if not _in_service(pod):
        return "gone"
    if phase == "Running" and any(
        condition["type"] == "Ready" and condition["status"] != "True"
        for condition in status.get("conditions") or ()
    ):
        return "unknown"  # Ray does not answer in it, or its node is lost
    return {"Running": "running", "Pending": "pending"}.get(str(phase), "unknown")  # type: ignore[return-value]


def blocked_by(namespace: Mapping[str, Any]) -> str:
    """Return the server's reason why a namespace still exists."""
    conditions = (namespace.get("status") or {}).get("conditions") or ()
    messages = [
        str(condition["message"])
        for condition in conditions
        if condition.get("status") == "True"
        and condition["type"] in ("NamespaceContentRemaining", "NamespaceFinalizersRemaining")
    ]
    unknown = f"It is still there after {GONE_DEADLINE_S:.0f} s, and the server does not say why."
    return " ".join(messages) or unknown


def _in_service(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod is neither being deleted nor over: KubeRay replaces such pods."""
    deleted = bool(pod["metadata"].get("deletionTimestamp"))
    return not deleted and (pod.get("status") or {}).get("phase") not in OVER


def _order(pod: Mapping[str, Any]) -> tuple[bool, int, str, str]:
    rank = rank_of(pod)
    made = str(pod["metadata"].get("creationTimestamp") or "")
    return rank is None, rank or 0, made, pod["metadata"]["name"]
