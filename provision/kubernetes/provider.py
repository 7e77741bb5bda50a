"""Provider `kubernetes`: pods in a cluster of Kubernetes that exists already, with KubeRay."""

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import InvalidInput
from inventories.machine import Inventory, Machine
from inventories.specs.gpu_driver import NO_DRIVER
from inventories.specs.spec import Spec
from provision.errors import Denied, NoCapacity, OtherAccount, ProvisionError, RefusedPlan
from provision.findings import Finding
from provision.kubernetes import checks, ray_cluster
from provision.kubernetes.adoption import rebuild
from provision.kubernetes.api import Api, connect
from provision.kubernetes.capacity import NodeRoom, cpus_each, efa_each, gpus_each, with_room
from provision.kubernetes.images import full_name
from provision.kubernetes.pods import PodMachines, Pods, roll_back
from provision.kubernetes.record import KubernetesCluster, load, save
from provision.owner import owner
from provision.pricing.catalog import gpus_of
from provision.pricing.plan_price import FREE, PlanPrice
from provision.provider import Plan, PlannedMachine
from provision.records import PlannedRequest, PlannedResource, ResourceAction, Target
from provision.unsupported_options import refuse_unsupported
from provision.waiting import Clock, Say, SystemClock, quiet

CPU_NOTE = (
    "no node of the cluster has a GPU that Kubernetes knows (nvidia.com/gpu): the machines train on CPUs"
)
UNKNOWN_PRICE = PlanPrice(machines_usd=None)


@dataclass(frozen=True, kw_only=True)
class PodPlan:
    """The data of a plan that only its provider needs, to carry it out."""

    cluster: KubernetesCluster
    count: int
    settles: bool
    """Whether the RayCluster requests a wrong number of workers, and no machine is missing."""


class KubernetesProvider(PodMachines):
    """The pods of one cluster, in a namespace of their own."""

    name = "kubernetes"
    billed = False
    ends_machines = True

    def __init__(
        self,
        folder: ClusterFolder,
        *,
        clock: Clock | None = None,
        connect: Callable[[str | None], Api] = connect,
    ) -> None:
        super().__init__(folder, clock or SystemClock())
        self._connect = connect

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """Plan with the cluster's pods and nodes. Raises Denied, NoCapacity, RefusedPlan and InvalidInput."""
        refuse_unsupported(spec, self.name, because="its machines are pods on nodes that are somebody's")
        if spec.image is not None:
            full_name(spec.image)
        record = load(self._folder)
        if record is not None:
            _refuse_elsewhere(record, spec)
        api = self._api(record, spec)
        pods = None if record is None else Pods(api, record, self._clock)
        machines = () if pods is None else pods.ranked()
        # An interrupted `up`, or one of another computer, may have requested another number.
        requested = pods.requested_count() if pods is not None else None
        existing = max(len(machines), record.count if record else 0, requested or 0)
        count = spec.count if spec.count is not None else max(existing, 1)
        python = spec.python or (current.machines[0].python if current and current.machines else None)
        keep = tuple(replace(machine, python=python) for machine in machines if machine.rank < count)
        missing = sorted(set(range(count)) - {machine.rank for machine in keep})
        cluster, notes = record, list[str]()
        free = True
        if missing or cluster is None:
            cluster, free, notes = self._requested(api, record, spec, len(missing))
        if not free and spec.max_cost_usd is not None:
            raise RefusedPlan(
                f"--max-cost can't be kept: {notes[-1]}. Nothing was created. Leave --max-cost out, or ask for "
                "machines that the cluster's nodes have room for."
            )
        settles = not missing and requested is not None and requested != count
        end = tuple(machine for machine in machines if machine.rank >= count)
        names = {machine.rank: machine.id for machine in (current.machines if current else ())}
        create = tuple(
            PlannedMachine(
                name=f"{cluster.name}-{rank}", rank=rank, shape=cluster.shape, replaces=names.get(rank)
            )
            for rank in missing
        )
        return Plan(
            spec=replace(spec, shape=cluster.shape),
            provider=self.name,
            region=None,
            create=create,
            keep=keep,
            end=tuple(machine.id for machine in end),
            price=FREE if free else UNKNOWN_PRICE,
            free=free,
            requests=_requests(cluster, count) if create or settles else (),
            resources=tuple(_resources(cluster, create, keep, end, first=record is None)),
            driver=NO_DRIVER,
            notes=tuple(notes),
            details=PodPlan(cluster=cluster, count=count, settles=settles),
        )

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """Make the machines of the plan; continues an interrupted call."""
        assert isinstance(plan.details, PodPlan)
        cluster, count = plan.details.cluster, plan.details.count
        if not plan.create and not plan.details.settles:
            return plan.keep
        before = load(self._folder)
        save(self._folder, cluster if before is None else replace(cluster, count=before.count))
        journal.append("kubernetes objects", namespace=cluster.namespace, count=count)
        say(f"namespace {cluster.namespace} in the cluster of context {cluster.context}, {cluster.server}")
        token = self._folder.ray_token()
        api = self._connect(cluster.context)
        pods = Pods(api, cluster, self._clock)
        try:
            pods.apply(count, token)
            workers = pods.wait(count, say)
            pods.rank(workers, count)
            python = plan.spec.python or next((machine.python for machine in plan.keep), None)
            machines = pods.machines(count, python=python)
        except (ProvisionError, KeyboardInterrupt) as error:
            # A smaller count stays: the pods above it may have ended.
            roll_back(pods, error, (min(before.count, count) or None) if before else None, token, say)
            raise
        save(self._folder, replace(cluster, count=count))
        return machines

    def adopt(self, target: Target, cluster_id: str, say: Say = quiet) -> None:  # noqa: ARG002
        """Rebuild the files of a cluster of another computer: see `provision.provider.AdoptingProvider`.

        The target's profile is the context.
        """
        rebuild(self._connect(target.profile), self._folder, cluster_id)

    def admit_key(self, machine: Machine) -> str:  # noqa: ARG002
        """Return an empty clause: pods need no key."""
        return ""

    def console(self, machine: Machine) -> str | None:  # noqa: ARG002
        """Return `None`: a pod has no console."""
        return None

    def check(self, spec: Spec) -> tuple[Finding, ...]:
        """Return the findings on what would make `up` fail. Read-only."""
        record = load(self._folder)
        if record is not None and spec.context not in (None, record.context):
            record = None  # the spec names another cluster than the record's
        api = self._api(record, spec)
        namespace = record.namespace if record else f"gpuctl-{self._folder.name}"
        image = spec.image or (record.image if record else None)
        return tuple(checks.findings(api, namespace, spec.shape, spec.count or 1, image=image))

    def _requested(
        self, api: Api, record: KubernetesCluster | None, spec: Spec, missing: int
    ) -> tuple[KubernetesCluster, bool, list[str]]:
        """Return the cluster that the spec requests, whether it is free, and notes.

        Raises Denied, RefusedPlan, NoCapacity and InvalidInput if it can't be made.
        """
        base = record or KubernetesCluster(
            name=self._folder.name,
            id=secrets.token_hex(3),
            owner=owner(),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            context=api.context,
            server=api.server,
            image="",
        )
        lacking = checks.missing_permissions(api, base.namespace)
        if lacking:
            raise Denied(
                f"In the cluster of context {api.context} you may not {lacking}. Have its administrator "
                "allow that by a ClusterRole. Nothing was made."
            )
        if problem := checks.kuberay_problem(api):
            raise RefusedPlan(f"{problem} Nothing was made.")
        shape = spec.shape or base.shape
        rooms = checks.nodes(api, base.namespace)
        of_shape = gpus_of(shape) if shape else None
        cpus, efa = base.cpus, base.efa
        if rooms is None:
            if shape is None and record is None:
                raise InvalidInput(
                    "You may not list the cluster's nodes, so their GPUs are not known. Name their instance type "
                    "with --shape, such as g5.12xlarge."
                )
            if of_shape is None and record is None:
                raise InvalidInput(
                    f"You may not list the cluster's nodes, and how many GPUs a {shape} has is not known here. Have "
                    "its administrator allow you to list nodes."
                )
            gpus = base.gpus if record else of_shape or 0
            notes, free = ["you may not list nodes: whether there is room is not known"], False
        else:
            gpus = base.gpus if record else gpus_each(rooms, shape, of_shape=of_shape)
            cpus = base.cpus if record else cpus_each(rooms, shape, gpus)
            # Ray's public image lacks what NCCL needs to use them.
            efa = efa_each(rooms, shape, gpus) if spec.image and not record else efa
            fitting, ready = with_room(rooms, shape, gpus)
            room = fitting if ready is None else ready
            free, notes = True, [] if gpus else [CPU_NOTE]
            if room < missing:
                adds_nodes = checks.adds_nodes(api)
                if not adds_nodes:
                    raise NoCapacity(_no_room(api, rooms, missing, gpus, shape, fitting, ready))
                free = False
                notes.append(
                    f"{adds_nodes} makes the nodes that are missing, which are billed; their price is not known here"
                )
        image = spec.image or (base.image or ray_cluster.default_image(gpus))
        python = spec.python or base.python
        made = replace(base, shape=shape, gpus=gpus, cpus=cpus, efa=efa, image=image, python=python)
        return made, free, notes

    def _api(self, record: KubernetesCluster | None, spec: Spec) -> Api:
        return self._api_of(record) if record is not None else self._connect(spec.context)

    def _api_of(self, record: KubernetesCluster) -> Api:
        """Return the record's API server. Raises OtherAccount if the context now means another cluster."""
        api = self._connect(record.context)
        if api.server != record.server:
            raise OtherAccount(
                f"Cluster '{record.name}' is at {record.server}, and the context {record.context} is now of "
                f"{api.server}. Nothing was looked at. Name the former one {record.context} again in your "
                "kubeconfig, or, if it is gone for good, `gpuctl down --forget`."
            )
        return api


def _refuse_elsewhere(record: KubernetesCluster, spec: Spec) -> None:
    for option, recorded, requested in (
        ("--context", record.context, spec.context),
        ("--shape", record.shape, spec.shape),
        ("--image", record.image, spec.image),
    ):
        if requested is not None and requested != recorded:
            raise RefusedPlan(
                f"Cluster '{record.name}' has {option} {recorded or '(none)'}, not {requested}. Leave {option} out, "
                "or make another cluster with --cluster NAME."
            )


def _no_room(
    api: Api,
    rooms: Sequence[NodeRoom],
    missing: int,
    gpus: int,
    shape: str | None,
    fitting: int,
    ready: int | None,
) -> str:
    have = Counter(node.shape or "nodes without that label" for node in rooms)
    listed = ", ".join(f"{count} {name}" for name, count in sorted(have.items()))
    each = f" with {gpus} GPUs each" if gpus else ""
    of = f" of instance type {shape}" if shape else ""
    subject = f"1 new machine{each} is" if missing == 1 else f"{missing} new machines{each} are"
    other = f" It has {listed or 'no node that can be used'}." if shape and not fitting else ""
    busy = (
        ""
        if ready is None or ready == fitting
        else f", and {ready} of them {'has' if ready == 1 else 'have'} all GPUs free"
    )
    return (
        f"{subject} asked for, one a node, and the cluster of context {api.context} has {fitting} nodes{of} that "
        f"fit{busy}.{other} Nothing was made. Ask for fewer, wait, or have its administrator add nodes."
    )


def _requests(cluster: KubernetesCluster, count: int) -> tuple[PlannedRequest, ...]:
    hidden = ray_cluster.secret(cluster, "") | {"data": {"auth_token": "<token>"}}
    documents = (
        ray_cluster.namespace(cluster),
        ray_cluster.network_policy(cluster),
        hidden,
        ray_cluster.ray_cluster(cluster, count),
    )
    return tuple(PlannedRequest(operation=f"Apply{body['kind']}", body=body) for body in documents)


def _resources(
    cluster: KubernetesCluster,
    create: tuple[PlannedMachine, ...],
    keep: tuple[Machine, ...],
    end: tuple[Machine, ...],
    *,
    first: bool,
) -> list[PlannedResource]:
    rows = []
    if create:
        action: ResourceAction = "create" if first else "use"
        detail = f"in the cluster of context {cluster.context}, {cluster.server}"
        rows.append(PlannedResource(action=action, kind="namespace", name=cluster.namespace, detail=detail))
        name, detail = ray_cluster.RAY_CLUSTER_NAME, f"{cluster.image}, a head beside the pods"
        rows.append(PlannedResource(action=action, kind="raycluster", name=name, detail=detail))
        detail = f"{cluster.gpus} GPUs each" if cluster.gpus else "on CPUs"
        detail += f", on {cluster.shape}" if cluster.shape else ""
        rows.append(
            PlannedResource(action="create", kind="pod", count=len(create), detail=f"{detail}, one a node")
        )
    rows += [PlannedResource(action="use", kind="pod", name=machine.name, id=machine.id) for machine in keep]
    rows += [PlannedResource(action="end", kind="pod", name=machine.name, id=machine.id) for machine in end]
    return rows


provider = KubernetesProvider
"""Returns the provider for one cluster."""
