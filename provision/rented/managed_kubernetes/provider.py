"""The provider of a cloud's Kubernetes: from nothing to a cluster whose nodes have the shape asked for, and back.

The tags of the cloud's resources are the truth about what exists, as for virtual machines; the files are the same.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from inventories.disk.files import write_atomic
from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import GpuctlError, InvalidInput
from inventories.machine import Inventory, Machine
from inventories.specs.spec import Spec
from provision.clouds import describe
from provision.errors import UNHEARD, BadCredentials, LeftBehind, OtherAccount
from provision.findings import Finding
from provision.kubernetes.images import full_name
from provision.kubernetes.pods import Pods
from provision.parallel import together
from provision.provider import Leftover, Plan
from provision.records import CloudCluster, EndGuard, Target
from provision.rented import teardown
from provision.rented.find_or_create import JournaledEnsure, all_gone, recent_makings
from provision.rented.managed_kubernetes import api_server, kubeconfig
from provision.rented.managed_kubernetes.api_server import ApiServer
from provision.rented.managed_kubernetes.plan import Details, make_outline, make_plan
from provision.rented.managed_kubernetes.service import KubernetesService, ServiceFacts, Work
from provision.rented.managed_kubernetes.workers import Workers
from provision.rented.planning import caller_address
from provision.rented.planning.plan import wanted_cluster
from provision.rented.planning.spec_checks import refuse_elsewhere
from provision.rented.state import CloudState
from provision.unsupported_options import refuse_unsupported
from provision.waiting import Clock, Say, SystemClock, quiet


class ManagedKubernetes:
    """The machines of one cluster in one region."""

    billed = True
    ends_machines = True

    def __init__(
        self,
        facts: ServiceFacts,
        folder: ClusterFolder,
        sdk: Callable[[], Finding],
        connect: Callable[[Target, Clock], KubernetesService],
        *,
        clock: Clock | None = None,
    ) -> None:
        self.name = facts.name
        self._facts, self._sdk, self._connect = facts, sdk, connect
        self._files = CloudState(folder)
        self._clock = clock or SystemClock()
        self._workers = Workers(folder=folder, clock=self._clock)
        self._services: dict[Target, KubernetesService] = {}

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """As the protocol says. Where the API server does not answer us, the inventory tells the machines."""
        self._refuse_unusable(spec)
        record = self._files.load()
        if record is not None:
            refuse_elsewhere(record, spec)
        service = self._service(self._target(spec)) if record is None else self._of(record, spec.profile)
        asked = spec.ssh_cidr if spec.ssh_cidr is not None or record is None else record.ssh_cidr
        cidrs, unknown = _planned_cidrs(asked)
        let_in = None if record is None else service.lets_in(record)
        notes = []
        if unknown and let_in:
            notes.append(f"this computer's address is not known ({unknown}), so who is let in stays as it is")
            cidrs, unknown = let_in, ""
        machines = current.machines if current else ()
        if let_in is not None and not set(cidrs) <= set(let_in):
            notes.append(f"the API server will let in {', '.join(cidrs)}, and not {', '.join(let_in)}")
        else:
            there = record is not None and service.server(record) is not None
            try:
                machines = self._workers.find() if there else ()
            except UNHEARD as error:
                notes.append(f"which pods there are is not known: {error}")
        return make_plan(
            service, self._files, record, spec, machines, cidrs=cidrs, unknown=unknown, notes=tuple(notes)
        )

    def outline(self, spec: Spec) -> Plan:
        """The plan for an account that can't be asked: as if nothing of ours were there."""
        self._refuse_unusable(spec)
        return make_outline(self._facts, self._files, spec)

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """As the protocol says. Goes on where an interrupted one stopped: each part is found, or made."""
        assert isinstance(plan.details, Details)
        cluster, offer, count = plan.details.cluster, plan.details.offer, plan.details.count
        if plan.ssh_unknown:
            raise caller_address.AddressUnknown(plan.ssh_unknown)
        service = self._service(cluster.target)
        self._files.save(cluster)
        ensure = JournaledEnsure(
            journal,
            self._files.network_journal(cluster.target),
            clock=self._clock,
            consistency_s=service.cloud.consistency_s,
            say=say,
        )
        work = Work(
            cluster=cluster,
            offer=offer,
            ensure=ensure,
            say=say,
            network=lambda: self._files.network_lock(cluster.target, "up", say),
            kept=len(plan.keep),
            stay=lambda: self._hosts({machine.rank for machine in plan.keep}),
        )
        if plan.end:
            # First, and whatever else does not work: these are billed.
            heard = self._end_workers(count, say)
            service.end_nodes(work, count)
            if plan.details.ends_only or not (heard or count):
                return plan.keep  # on the nodes that stay
        server = service.make_control_plane(work)
        self._write_kubeconfig(service, cluster, server)
        api_server.wait_ready(self._clock, server, lambda: service.token(cluster), say)
        pods = partial(
            self._workers.create,
            cluster,
            offer,
            count,
            journal,
            say,
            context=self._facts.cluster_name(cluster),
            own_plugin=self._facts.own_plugin,
        )
        with self._taken_back(service, work):
            service.make_nodes(work, count)
            if (plan.create or plan.makes_control_plane) and any(end.ends_bill for end in plan.ends):
                say(describe(self.name).ending_sentence(cluster, offer))
            if plan.changes or self._workers.asked_for() != count:
                pods()
        self._workers.use_python(plan.spec.python)
        return self._workers.find()

    def find(self) -> tuple[Machine, ...]:
        """As the protocol says. Where the API server does not answer us, the inventory tells the machines."""
        record = self._files.load()
        if record is None:
            return ()
        if self._of(record).server(record) is None:
            return ()  # nothing is there to tell of them
        try:
            return self._workers.find()
        except UNHEARD:
            folder = self._files.cluster_folder
            known = folder.load().machines if folder.exists() else ()
            return tuple(replace(machine, state="unknown") for machine in known)

    def ends(self) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the cluster's machines: see `provision.provider.EndingProvider`."""
        cluster = self._files.load()
        if cluster is None or not describe(self.name).end_guards(cluster):
            return ()
        return self._of(cluster).ends(cluster)

    def refresh(self, machine: Machine) -> Machine:
        """As the protocol says."""
        return self._workers.refresh(machine)

    def pods(self) -> Pods | None:
        """The machines as pods. None: nothing was asked of Kubernetes yet."""
        return self._workers.pods()

    def console(self, machine: Machine) -> str | None:  # noqa: ARG002 - a pod has none
        """As the protocol says."""
        return None

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """As the protocol says. The shared network goes with its last cluster."""
        cluster = self._files.load()
        if cluster is None:
            return ()
        service = self._of(cluster)
        self._remove_workers(service, cluster, say)
        removed = teardown.remove(
            service.cloud,
            {cluster.id},
            network=lambda: self._files.network_lock(cluster.target, "down", say),
            network_gone=lambda: all_gone(self._files.network_journal(cluster.target)),
            clock=self._clock,
            say=say,
            watch_s=self._watch_s(service, cluster),
        )
        if removed.network_users:
            say(f"the network stays: it is used by {', '.join(removed.network_users)}")
        if not removed.leftovers:
            all_gone(self._files.cluster_folder.journal)
        return removed.leftovers

    def check(self, spec: Spec) -> tuple[Finding, ...]:
        """What would make `up` fail. Read-only."""
        record = self._files.load()
        if record is not None:
            refuse_elsewhere(record, spec)
        try:
            service = self._service(self._target(spec)) if record is None else self._of(record, spec.profile)
        except BadCredentials as error:
            return (self._sdk(), Finding(what="credentials", ok=False, detail=str(error)))
        wanted = wanted_cluster(self.name, self._files.name, record, spec, lives=record is not None)
        asked = replace(wanted, target=service.cloud.target)
        findings, address = together(
            lambda: service.findings(asked, spec.count or 1), lambda: caller_address.check(asked.ssh_cidr)
        )
        return (*findings, address)

    def _refuse_unusable(self, spec: Spec) -> None:
        refuse_unsupported(
            spec,
            self.name,
            honoured=self._facts.honoured,
            because="its machines are nodes of a Kubernetes cluster, in a network of gpuctl's",
        )
        if spec.image is not None:
            full_name(spec.image)

    def _target(self, spec: Spec) -> Target:
        return Target(
            provider=self.name, region=spec.region, profile=spec.profile, compartment=spec.compartment
        )

    def _end_workers(self, count: int, say: Say) -> bool:
        """Have fewer pods, which go before their nodes, as far as that can be: else they go with them.

        Whether the API server took it.
        """
        try:
            self._workers.ask_for(count)
        except GpuctlError as error:
            say(f"pods go with their nodes: {error}")
            return False
        return True

    def _hosts(self, ranks: Collection[int]) -> tuple[str, ...]:
        """The private addresses of the nodes of these machines, as far as the API server tells."""
        try:
            return self._workers.hosts(ranks) if ranks else ()
        except GpuctlError:
            return ()

    @contextmanager
    def _taken_back(self, service: KubernetesService, work: Work) -> Iterator[None]:
        """End the nodes that were begun for machines which do not come."""
        begun = (
            "Nodes that were begun may be there or come up, and are billed: `gpuctl up` or `down` ends them."
        )
        try:
            yield
        except KeyboardInterrupt:
            work.say(begun)
            raise
        except GpuctlError as error:
            if work.kept and not work.stay():
                raise LeftBehind(f"{error} Now which nodes are at work can't be told. {begun}") from error
            try:
                service.end_nodes(work, work.kept)
            except GpuctlError as second:
                raise LeftBehind(f"{error} {begun} Now they could not be ended: {second}") from error
            except KeyboardInterrupt:
                work.say(begun)
                raise
            raise

    def _remove_workers(self, service: KubernetesService, cluster: CloudCluster, say: Say) -> None:
        """Remove what is in the cluster, as far as that can be: the rest goes with its control plane."""
        try:
            if service.server(cluster) is not None:
                for left in self._workers.remove(say):
                    say(f"the {left.kind} {left.id} goes with the control plane: {left.reason}")
        except GpuctlError as error:
            say(f"what is in the cluster goes with its control plane: {error}")

    def _watch_s(self, service: KubernetesService, cluster: CloudCluster) -> float:
        """How long parts may still come up that the cloud does not list yet."""
        journals = (self._files.cluster_folder.journal, self._files.network_journal(cluster.target))
        consistency_s = service.cloud.consistency_s
        recent = [one for journal in journals for one in recent_makings(journal, consistency_s)]
        ages = [age_s for made, age_s in recent if made is None]
        return max(0.0, consistency_s - min(ages, default=consistency_s))

    def _write_kubeconfig(self, service: KubernetesService, cluster: CloudCluster, server: ApiServer) -> None:
        text = kubeconfig.render(self._facts.cluster_name(cluster), server, service.token_command(cluster))
        write_atomic(self._files.cluster_folder.kubeconfig_path, text)

    def _of(self, record: CloudCluster, profile: str | None = None) -> KubernetesService:
        """Raises OtherAccount where the credentials are of somebody else than made the cluster."""
        service = self._service(replace(record.target, profile=profile or record.target.profile))
        made, now = record.target.account, service.cloud.target.account
        if made is not None and made != now:
            raise OtherAccount(
                f"Cluster '{record.name}' is in the account {made}, and the credentials in force are of {now}. "
                f"Nothing was looked at. Use those of {made}: by the environment, or --profile."
            )
        return service

    def _service(self, target: Target) -> KubernetesService:
        asked = replace(target, account=None)
        if asked not in self._services:
            self._services[asked] = self._connect(asked, self._clock)
        return self._services[asked]


def _planned_cidrs(asked: str | None) -> tuple[tuple[str, ...], str]:
    """As `caller_address.planned_cidrs`, of IPv4 alone. Raises InvalidInput where another range is asked for."""
    cidrs, unknown = caller_address.planned_cidrs(asked)
    wrong = ", ".join(cidr for cidr in cidrs if ":" in cidr)
    if not wrong:
        return cidrs, unknown
    if asked is not None:
        raise InvalidInput(
            f"The API server is to be reached from {wrong}, and it has IPv4 addresses only. Give the IPv4 address "
            "that this computer is seen with: `--ssh-cidr 203.0.113.7/32`."
        )
    unknown = f"it is seen as {wrong}, and the API server has IPv4 addresses only"
    return (caller_address.YOUR_ADDRESS,), unknown
