"""The provider of a cloud's Kubernetes: creates a cluster whose nodes have the requested shape, and removes it.

The tags of the cloud's resources are the truth about existing ones, as for virtual machines; the files are the same.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from inventories import codec
from inventories.disk.files import write_atomic
from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import GpuctlError, InvalidInput
from inventories.machine import Inventory, Machine
from inventories.specs.spec import Spec
from provision.clouds import describe
from provision.errors import API_UNAVAILABLE, LeftBehind, RefusedPlan
from provision.findings import Finding
from provision.kubernetes.images import full_name
from provision.kubernetes.pods import Pods
from provision.provider import Plan
from provision.records import CloudCluster, EndGuard, Target
from provision.rented.adoption import missing_ranges
from provision.rented.base import RentedProvider
from provision.rented.interface import Cloud
from provision.rented.managed_kubernetes import api_server
from provision.rented.managed_kubernetes.plan import ServicePlan, make_plan
from provision.rented.managed_kubernetes.service import CreateContext, KubernetesService, ServiceTraits
from provision.rented.managed_kubernetes.workers import Workers, pod_cluster_id
from provision.rented.planning import caller_address
from provision.unsupported_options import refuse_unsupported
from provision.waiting import Clock, Say, quiet


class ManagedKubernetes(RentedProvider[KubernetesService]):
    """The machines of one cluster in one region."""

    def __init__(
        self,
        folder: ClusterFolder,
        *,
        traits: ServiceTraits,
        connect: Callable[[Target, Clock], KubernetesService],
        clock: Clock | None = None,
    ) -> None:
        super().__init__(traits.name, folder, connect, clock)
        self._traits = traits
        self._workers = Workers(folder, self._clock)

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """Plan with the cluster's pods, or with the inventory if the API server does not answer."""
        self._refuse_unusable(spec)
        record = self._record_for(spec)
        service = self._account_for(record, spec)
        requested = spec.ssh_cidr if spec.ssh_cidr is not None or record is None else record.ssh_cidr
        cidrs, unknown = _planned_cidrs(requested)
        let_in = None if record is None else service.allowed_cidrs(record)
        notes = []
        if unknown and let_in:
            notes.append(f"this computer's address is not known ({unknown}), so who is let in stays as it is")
            cidrs, unknown = let_in, ""
        machines, pods = current.machines if current else (), 0
        if let_in is not None and not set(cidrs) <= set(let_in):
            notes.append(f"the API server will let in {', '.join(cidrs)}, and not {', '.join(let_in)}")
        else:
            works = record is not None and service.server(record) is not None
            try:
                machines = self._workers.find() if works else ()
                pods = (self._workers.requested_count() if works else None) or 0
            except API_UNAVAILABLE as error:
                notes.append(f"which pods there are is not known: {error}")
        return make_plan(
            self._traits,
            service,
            self._files,
            record,
            spec,
            machines,
            cidrs=cidrs,
            requested=pods,
            unknown=unknown,
            notes=tuple(notes),
        )

    def outline(self, spec: Spec) -> Plan:
        """Return the plan for an unknown account, as if it had no resource of ours."""
        self._refuse_unusable(spec)
        cidrs = (spec.ssh_cidr or caller_address.YOUR_ADDRESS,)
        return make_plan(self._traits, None, self._files, None, spec, (), cidrs=cidrs)

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """Make the machines of the plan; continues an interrupted call: each resource is found, or made."""
        assert isinstance(plan.details, ServicePlan)
        cluster, offer, count = plan.details.cluster, plan.details.offer, plan.details.count
        if plan.ssh_unknown:
            raise caller_address.AddressUnknown(plan.ssh_unknown)
        service = self._account(cluster.target)
        self._files.save(cluster)
        context = CreateContext(
            cluster=cluster,
            offer=offer,
            ensure=self._ensure(service, cluster, journal, say),
            say=say,
            network=lambda: self._files.network_lock(cluster.target, "up", say),
            staying=len(plan.keep),
            staying_addresses=lambda: self._hosts({machine.rank for machine in plan.keep}),
        )
        if plan.end:
            # First, so that their bill ends even if a later step fails.
            scaled = self._end_workers(count, say)
            service.end_nodes(context, count)
            if plan.details.ends_only or not (scaled or count):
                return plan.keep  # on the nodes that stay
        server = service.make_control_plane(context)
        name = self._write_kubeconfig(service, cluster, server)
        api_server.wait_ready(self._clock, server, lambda: service.token(cluster), say)
        with self._rolled_back(service, context):
            service.make_nodes(context, count)
            if (plan.create or plan.makes_control_plane) and any(end.ends_bill for end in plan.ends):
                say(describe(self.name).ending_sentence(cluster, offer))
            if plan.changes or self._workers.requested_count() != count:
                own_plugin = self._traits.own_plugin
                self._workers.create(cluster, offer, count, journal, say, context=name, own_plugin=own_plugin)
        self._workers.use_python(plan.spec.python)
        return self._workers.find()

    def adopt(self, target: Target, cluster_id: str, say: Say = quiet) -> None:
        """Rebuild the files of a cluster of another computer: see `provision.provider.AdoptingProvider`.

        The API server, found by the cluster's name and id, has the records of both the nodes and the pods.
        """
        service = self._account(target)
        target = service.cloud.target
        outline = CloudCluster(
            name=self._files.name, id=cluster_id, owner="", created_at="", target=target, shape=""
        )
        server = service.server(outline)
        if server is None:
            raise RefusedPlan(
                f"The cluster {self._files.name} has no working control plane, so it can't be taken over. `gpuctl "
                f"reap {cluster_id}` removes it."
            )
        self._files.cluster_folder.make()
        name = self._write_kubeconfig(service, outline, server)
        admitted = service.allowed_cidrs(outline) or ()
        if outside := missing_ranges(caller_address.caller_cidrs(None), admitted):
            say(
                f"the API server lets in {', '.join(admitted) or 'no address'}, and this computer is "
                f"{', '.join(outside)}: if it does not answer, add that address to {name} in the cloud's console"
            )
        try:
            pods = self._workers.adopt(name, pod_cluster_id(cluster_id))
        except API_UNAVAILABLE as error:
            raise LeftBehind(
                f"{error} So the cluster can't be used from here yet: `gpuctl adopt` tries again, and `gpuctl reap "
                f"{cluster_id}` removes it."
            ) from error
        except RefusedPlan as error:
            raise RefusedPlan(
                f"The control plane of the cluster {self._files.name} has no record of its machines, so it can't be "
                f"taken over, and what is left of it may cost money. `gpuctl reap {cluster_id}` removes it."
            ) from error
        record = codec.from_json(CloudCluster, pods.request, f"the namespace {pods.namespace}")
        if record.id != cluster_id:
            raise RefusedPlan(f"The namespace {pods.namespace} is of another cluster, {record.id}.")
        self._files.save(replace(record, target=target, ssh_cidrs=admitted or record.ssh_cidrs))

    def admit_key(self, machine: Machine) -> str:  # noqa: ARG002
        """Return an empty clause: pods need no key."""
        return ""

    def find(self) -> tuple[Machine, ...]:
        """Return the machines: the cluster's pods, or the inventory's if the API server does not answer."""
        record = self._files.load()
        if record is None or self._account_of(record).server(record) is None:
            return ()
        try:
            return self._workers.find()
        except API_UNAVAILABLE:
            folder = self._files.cluster_folder
            known = folder.load().machines if folder.exists() else ()
            return tuple(replace(machine, state="unknown") for machine in known)

    def ends(self) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the cluster's machines: see `provision.provider.EndingProvider`."""
        cluster = self._files.load()
        if cluster is None or not describe(self.name).end_guards(cluster):
            return ()
        return self._account_of(cluster).end_guards(cluster)

    def refresh(self, machine: Machine) -> Machine:
        """Return the machine with its state."""
        return self._workers.refresh(machine)

    def pods(self) -> Pods | None:
        """Return the machines as pods. `None`: Kubernetes has no object of the cluster yet."""
        return self._workers.pods()

    def console(self, machine: Machine) -> str | None:  # noqa: ARG002
        """Return `None`: a pod has no console."""
        return None

    def _cloud(self, account: KubernetesService) -> Cloud:
        return account.cloud

    def _findings(self, account: KubernetesService, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        return account.findings(cluster, count)

    def _write_kubeconfig(
        self, service: KubernetesService, cluster: CloudCluster, server: api_server.ApiServer
    ) -> str:
        """Write the kubeconfig of the cluster's folder. Returns the name of its context."""
        name = cluster.kubernetes_name
        text = api_server.kubeconfig(name, server, service.token_command(cluster))
        write_atomic(self._files.cluster_folder.kubeconfig_path, text)
        return name

    def _refuse_unusable(self, spec: Spec) -> None:
        refuse_unsupported(
            spec,
            self.name,
            because="its machines are nodes of a Kubernetes cluster, in a network of gpuctl's",
        )
        if spec.image is not None:
            full_name(spec.image)

    def _end_workers(self, count: int, say: Say) -> bool:
        """Scale the pods down before their nodes. Returns False if the API server refuses: pods end with nodes."""
        try:
            self._workers.request_count(count)
        except GpuctlError as error:
            say(f"pods go with their nodes: {error}")
            return False
        return True

    def _hosts(self, ranks: Collection[int]) -> tuple[str, ...]:
        """Return the private addresses of the nodes of these machines, as far as the API server has them."""
        try:
            return self._workers.hosts(ranks) if ranks else ()
        except GpuctlError:
            return ()

    @contextmanager
    def _rolled_back(self, service: KubernetesService, context: CreateContext) -> Iterator[None]:
        """End the new nodes if the body fails to make machines of them."""
        fewer = f"`gpuctl up --count {context.staying}` or " if context.staying else ""
        begun = (
            "Nodes that were begun may exist or come up, and are billed: `gpuctl up` continues with them, "
            f"{fewer}`gpuctl down` ends them."
        )
        try:
            yield
        except KeyboardInterrupt:
            context.say(begun)
            raise
        except GpuctlError as error:
            if context.staying and not context.staying_addresses():
                raise LeftBehind(f"{error} Which nodes are in use now is not known. {begun}") from error
            try:
                service.end_nodes(context, context.staying)
            except GpuctlError as second:
                raise LeftBehind(f"{error} {begun} Now they could not be ended: {second}") from error
            except KeyboardInterrupt:
                context.say(begun)
                raise
            raise

    def _before_teardown(self, account: KubernetesService, cluster: CloudCluster, say: Say) -> None:
        """Remove the objects in the Kubernetes cluster; the control plane's end removes the rest."""
        try:
            if account.server(cluster) is not None:
                for left in self._workers.destroy(say):
                    say(f"the {left.kind} {left.id} goes with the control plane: {left.reason}")
        except GpuctlError as error:
            say(f"what is in the cluster goes with its control plane: {error}")

    def _watch_s(self, account: KubernetesService, cluster: CloudCluster) -> float:
        consistency_s = account.cloud.consistency_s
        ages = [age_s for made, age_s in self._recent_makings(account, cluster) if made is None]
        return max(0.0, consistency_s - min(ages, default=consistency_s))


def _planned_cidrs(requested: str | None) -> tuple[tuple[str, ...], str]:
    """Return `caller_address.planned_cidrs` of IPv4. Raises InvalidInput for a requested range of IPv6."""
    cidrs, unknown = caller_address.planned_cidrs(requested)
    wrong = ", ".join(cidr for cidr in cidrs if ":" in cidr)
    if not wrong:
        return cidrs, unknown
    if requested is not None:
        raise InvalidInput(
            f"The API server is to be reached from {wrong}, and it has IPv4 addresses only. Give the IPv4 address "
            "that this computer is seen with: `--ssh-cidr 203.0.113.7/32`."
        )
    unknown = f"it is seen as {wrong}, and the API server has IPv4 addresses only"
    return (caller_address.YOUR_ADDRESS,), unknown
