"""A cluster's RayCluster in a Kubernetes cluster, and its worker pods: what is made, waited for and removed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inventories.machine import Machine, MachineState
from provision.errors import CreateFailed, Denied, LeftBehind, NoCapacity, ProvisionError
from provision.kubernetes import objects, waiting
from provision.kubernetes.api import EVENT, NAMESPACE, NETWORK_POLICY, POD, RAY_CLUSTER, SECRET, Api
from provision.kubernetes.capacity import OVER
from provision.kubernetes.record import KubernetesCluster
from provision.kubernetes.waiting import DEADLINES_S, Waiting
from provision.provider import Leftover
from provision.waiting import Clock, PollWaits, Progress, Say

GONE_DEADLINE_S = 300.0
MOST_EVENTS = 5
"""In an error: the last ones of a pod."""


@dataclass(frozen=True)
class Pods:
    """The objects of one cluster."""

    api: Api
    cluster: KubernetesCluster
    clock: Clock

    def workers(self) -> list[dict[str, Any]]:
        """Return the worker pods that are not on their way out, those with a rank first."""
        return sorted((pod for pod in self._pods(objects.WORKERS) if _stays(pod)), key=_order)

    def apply(self, count: int, token: str) -> None:
        """Make the namespace, the token and the RayCluster with so many workers, or bring them to that.

        Where there are too many, those go that are no machines of the first `count` ranks: KubeRay would take any.
        """
        self.api.apply(NAMESPACE, objects.namespace(self.cluster))
        self.api.apply(NETWORK_POLICY, objects.network_policy(self.cluster))
        self.api.apply(SECRET, objects.secret(self.cluster, token))
        workers = self.workers()
        surplus = max(0, len(workers) - count)
        # Those without a rank first, then the highest ranks.
        others = [pod["metadata"]["name"] for pod in sorted(workers, key=_order, reverse=True)[:surplus]]
        self.api.apply(RAY_CLUSTER, objects.ray_cluster(self.cluster, count, delete=others))

    def asked_for(self) -> int | None:
        """How many workers the RayCluster has to have. None: there is none."""
        found = self.api.get(RAY_CLUSTER, objects.RAY_CLUSTER_NAME, self.cluster.namespace)
        return None if found is None else int(found["spec"]["workerGroupSpecs"][0]["replicas"])

    def wait(self, count: int, say: Say) -> list[dict[str, Any]]:
        """Wait until so many workers and the head are ready; tell what they wait for. Returns the workers.

        Raises NoCapacity where no node has room, and CreateFailed where a pod can't start or takes too long.
        """
        progress, waits = Progress(self.clock, say), PollWaits(longest_s=3.0)
        since: dict[str, tuple[waiting.Stage, float]] = {}
        told: set[str] = set()
        while True:
            now = self.clock.now()
            # One that has ended is made anew by KubeRay.
            pods = [pod for pod in self._pods(objects.PODS) if _stays(pod)]
            workers = sorted((pod for pod in pods if not _is_head(pod)), key=_order)
            stages = {pod["metadata"]["name"]: self._stage(pod) for pod in pods}
            if len(pods) == count + 1 and all(one.stage == "ready" for one in stages.values()):
                return workers
            for name, one in stages.items():
                if since.get(name, (None, 0.0))[0] != one.stage:
                    since[name] = (one.stage, now)
                if one.words not in told and one.stage != "ready":
                    told.add(one.words)
                    say(f"{name} waits for {one.words}")
                if one.fatal or now - since[name][1] > DEADLINES_S[one.stage] > 0:
                    raise self._failure(name, one, now - since[name][1])
            missing = count + 1 - len(pods)
            if missing > 0:
                since.setdefault("", ("start", now))
                if now - since[""][1] > DEADLINES_S["start"]:
                    raise self._not_made(missing, count + 1)
            else:
                since.pop("", None)
            if missing < 0:
                since.setdefault("surplus", ("start", now))
                if now - since["surplus"][1] > DEADLINES_S["start"]:
                    raise CreateFailed(
                        f"KubeRay keeps {len(pods)} pods in {self.cluster.namespace}, where {count + 1} are asked "
                        f"for: {', '.join(sorted(stages))}. Is its operator at work?"
                    )
            else:
                since.pop("surplus", None)
            ready = sum(one.stage == "ready" for one in stages.values())
            progress.tell(f"waiting for the pods: {ready} of {count + 1} are ready")
            self.clock.sleep(waits.next())

    def rank(self, workers: Sequence[Mapping[str, Any]], count: int) -> None:
        """Give each worker without a rank a free one, by a label: it is the truth about which machine is which."""
        taken = {rank for pod in workers if (rank := rank_of(pod)) is not None and rank < count}
        free = iter(sorted(set(range(count)) - taken))
        for pod in workers:
            if (rank := rank_of(pod)) is None or rank >= count:
                name = pod["metadata"]["name"]
                self.api.label(POD, name, self.cluster.namespace, {objects.RANK: str(next(free))})

    def found(self) -> tuple[Machine, ...]:
        """Return the machines: the worker pods that have a rank, by it."""
        ranked = [pod for pod in self.workers() if rank_of(pod) is not None]
        return tuple(self.machine(pod, python=self.cluster.python) for pod in ranked)

    def machines(self, count: int, *, python: str | None = None) -> tuple[Machine, ...]:
        """Return all of them, by rank. Raises CreateFailed where one went since it was ready."""
        ranked = [pod for pod in self.workers() if (rank := rank_of(pod)) is not None and rank < count]
        if len(ranked) != count:
            raise CreateFailed(
                f"{count - len(ranked)} of {count} pods went as soon as they were ready. Try again."
            )
        return tuple(self.machine(pod, python=python) for pod in ranked)

    def remove(self, say: Say) -> tuple[Leftover, ...]:
        """Remove the namespace and all that is in it; what is left at the deadline, with the server's reason."""
        name = self.cluster.namespace
        try:
            found = self.api.get(NAMESPACE, name)
            if found is None:
                return ()
            if not objects.is_of(found, self.cluster):
                why = f"It has not the label {objects.CLUSTER_ID}={self.cluster.id}, so it is left alone."
                return (Leftover(kind="namespace", id=name, reason=why),)
            self.api.delete(RAY_CLUSTER, objects.RAY_CLUSTER_NAME, name)
            self.api.delete(NAMESPACE, name)
        except Denied as error:
            return (Leftover(kind="namespace", id=name, reason=str(error)),)
        progress, waits = Progress(self.clock, say), PollWaits(longest_s=3.0)
        limit = self.clock.now() + GONE_DEADLINE_S
        while (found := self.api.get(NAMESPACE, name)) is not None:
            if self.clock.now() > limit:
                return (Leftover(kind="namespace", id=name, reason=blocked_by(found)),)
            progress.tell(f"waiting for the namespace {name} to go")
            self.clock.sleep(waits.next())
        return ()

    def in_place(self, machines: Sequence[Machine]) -> dict[int, dict[str, Any]]:
        """Return the ready pods that are no machine yet, by the ranks of lost ones that they can take."""
        return in_place(machines, self.workers())

    def take_in(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """Return the machines, lost ones replaced by ready pods, which get their ranks."""
        new = self.in_place(machines)
        for rank, pod in new.items():
            self.api.label(POD, pod["metadata"]["name"], self.cluster.namespace, {objects.RANK: str(rank)})
        return tuple(
            self.machine(new[machine.rank], rank=machine.rank, python=machine.python)
            if machine.rank in new
            else machine
            for machine in machines
        )

    def how_far(self, machines: Sequence[Machine]) -> tuple[list[Machine], list[str]]:
        """Return those of the machines that are ready, and what pods wait for that are not: a clause for each."""
        stages = {pod["metadata"]["name"]: self._stage(pod) for pod in self.workers()}
        ready = {name for name, one in stages.items() if one.stage == "ready"}
        waits = [f"{name} waits for {one.words}" for name, one in stages.items() if name not in ready]
        return [machine for machine in machines if machine.host in ready], waits

    def gone(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """Return those of the machines whose pods are gone, or on their way out."""
        return tuple(_gone(machines, self.workers()))

    def machine(
        self, pod: Mapping[str, Any], *, rank: int | None = None, python: str | None = None
    ) -> Machine:
        """Return a worker pod as a machine. `rank`: its own; None: that of its label."""
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

    def _stage(self, pod: Mapping[str, Any]) -> Waiting:
        found = waiting.of(pod)
        # Events cost a request: they tell only of pods that wait for a container.
        return (
            waiting.of(pod, self._events(pod))
            if found.stage in ("init", "start") and not found.fatal
            else found
        )

    def _events(self, of_object: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return what is told of an object, oldest first; None: it can't be listed."""
        of = f"involvedObject.name={of_object['metadata']['name']}"
        try:
            found = self.api.list(EVENT, self.cluster.namespace, fieldSelector=of)
        except Denied:
            return None
        return sorted(found, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))

    def _not_made(self, missing: int, count: int) -> CreateFailed:
        """Return the error for pods that KubeRay does not make, with what it says of the RayCluster."""
        name, namespace = objects.RAY_CLUSTER_NAME, self.cluster.namespace
        lines = self._last_events(self.api.get(RAY_CLUSTER, name, namespace))
        head = f"KubeRay has not made {missing} of {count} pods within {DEADLINES_S['start']:.0f} s."
        if not lines:
            head += (
                f" Is its operator at work? `kubectl --context {self.api.context} describe raycluster {name} -n "
                f"{namespace}` shows what it says."
            )
        return CreateFailed("\n".join([head, *lines]))

    def _last_events(self, of_object: Mapping[str, Any] | None) -> list[str]:
        events = (self._events(of_object) or [])[-MOST_EVENTS:] if of_object else []
        return [f"  {one.get('reason')}: {one.get('message')}" for one in events]

    def _failure(self, name: str, found: Waiting, seconds: float) -> ProvisionError:
        """Return the error for a pod that waits in vain, with its last events."""
        pod = self.api.get(POD, name, self.cluster.namespace)
        lines = self._last_events(pod)
        if found.stage == "node":
            head = f"No node has room for {name} within {seconds:.0f} s: it waits for {found.words}."
            return NoCapacity("\n".join([head, *lines]))
        how = "can't start" if found.fatal else f"is not ready after {seconds:.0f} s"
        return CreateFailed("\n".join([f"The pod {name} {how}: it waits for {found.words}.", *lines]))


def undo(pods: Pods, error: BaseException, before: int | None, token: str, say: Say) -> None:
    """Bring a cluster back to what it was before `error`: a head and so many machines. None: nothing.

    Raises LeftBehind where that does not work either.
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
        listed = "; ".join(f"{one.kind} {one.id}: {one.reason}" for one in leftovers)
        raise LeftBehind(
            f"{error} What was begun is still there: {listed} `gpuctl down` removes it."
        ) from error


def in_place(machines: Sequence[Machine], workers: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the pods that are ready and no machine yet, by the ranks that they can take: those of lost machines."""
    known = {machine.host for machine in machines}
    lost = [machine.rank for machine in _gone(machines, workers)]
    new = [
        pod for pod in workers if pod["metadata"]["name"] not in known and waiting.of(pod).stage == "ready"
    ]
    ranked = {rank: pod for pod in new if (rank := rank_of(pod)) in lost and rank is not None}
    held = {rank_of(pod) for pod in workers}
    others = [pod for pod in new if rank_of(pod) is None]
    return ranked | dict(zip((rank for rank in lost if rank not in held), others, strict=False))


def _gone(machines: Sequence[Machine], workers: Sequence[Mapping[str, Any]]) -> list[Machine]:
    there = {pod["metadata"]["name"] for pod in workers}
    return [machine for machine in machines if machine.host not in there]


def rank_of(pod: Mapping[str, Any]) -> int | None:
    """Return the node rank that the pod's label tells."""
    text = (pod["metadata"].get("labels") or {}).get(objects.RANK, "")
    return int(text) if text.isdecimal() else None


def state_of(pod: Mapping[str, Any]) -> MachineState:
    """Return the machine's state."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    if not _stays(pod):
        return "gone"
    if phase == "Running" and any(
        one["type"] == "Ready" and one["status"] != "True" for one in status.get("conditions") or ()
    ):
        return "unknown"  # Ray does not answer in it, or its node is lost
    return {"Running": "running", "Pending": "pending"}.get(str(phase), "unknown")  # type: ignore[return-value]


def blocked_by(namespace: Mapping[str, Any]) -> str:
    """Return what keeps a namespace from going, as the server tells."""
    conditions = (namespace.get("status") or {}).get("conditions") or ()
    said = [
        str(one["message"])
        for one in conditions
        if one.get("status") == "True"
        and one["type"] in ("NamespaceContentRemaining", "NamespaceFinalizersRemaining")
    ]
    return (
        " ".join(said) or f"It is still there after {GONE_DEADLINE_S:.0f} s, and the server does not say why."
    )


def _going(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _stays(pod: Mapping[str, Any]) -> bool:
    """Whether it is neither on its way out nor over: KubeRay replaces those."""
    return not _going(pod) and (pod.get("status") or {}).get("phase") not in OVER


def _is_head(pod: Mapping[str, Any]) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get("ray.io/node-type") == "head")


def _order(pod: Mapping[str, Any]) -> tuple[bool, int, str, str]:
    rank = rank_of(pod)
    made = str(pod["metadata"].get("creationTimestamp") or "")
    return rank is None, rank or 0, made, pod["metadata"]["name"]
