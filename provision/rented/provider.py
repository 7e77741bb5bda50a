"""The provider of a cloud's virtual machines: the same for OCI and AWS."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import CorruptFile, InvalidInput
from inventories.machine import Inventory, Machine, MachineState
from inventories.specs.spec import Spec
from provision.clouds import describe
from provision.errors import BadCredentials, CloudError
from provision.findings import Finding
from provision.provider import Plan
from provision.records import (
    CloudCluster,
    EndGuard,
    Infrastructure,
    Instance,
    Offer,
    ScheduledEnd,
    Target,
    Zone,
)
from provision.rented.adoption import learn_launches, missing_ranges, rebuild
from provision.rented.base import RentedProvider
from provision.rented.ends import ends_bill, guards, idle_ends, is_late, not_scheduled
from provision.rented.find_or_create import Ensure
from provision.rented.interface import AdmitsKeys, Cloud, SchedulesEnd, connect
from provision.rented.launch.launch_in_zones import ensure_running
from provision.rented.launch.single_launch import LaunchContext
from provision.rented.planning import caller_address
from provision.rented.planning.plan import CloudPlan, make_outline, make_plan
from provision.rented.planning.spec_checks import refuse_terms, refuse_unknown_shape
from provision.rented.state import STATES, machine_of
from provision.rented.tags import LAUNCH
from provision.ssh_keys import ensure_key
from provision.unsupported_options import refuse_unsupported
from provision.waiting import Clock, Say, quiet


class CloudProvider(RentedProvider[Cloud]):
    """The machines of one cluster in one region of a cloud."""

    def __init__(
        self,
        name: str,
        folder: ClusterFolder,
        *,
        clock: Clock | None = None,
        connect: Callable[[Target, Clock], Cloud] = connect,
    ) -> None:
        super().__init__(name, folder, connect, clock)

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """Plan with the cloud's lists of our resources, by tag."""
        refuse_unsupported(spec, self.name, because="it has no such thing")
        if spec.python is None and current is not None and current.machines:
            # New machines have the interpreter of the others.
            spec = replace(spec, python=current.machines[0].python)
        record = self._record_for(spec)
        return make_plan(self._account_for(record, spec), self._files, record, spec)

    def outline(self, spec: Spec) -> Plan:
        """Return the plan for an unknown account, as if it had no resource of ours."""
        return make_outline(self.name, self._files, spec)

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """Make the machines of the plan; continues an interrupted call."""
        assert isinstance(plan.details, CloudPlan)
        cluster, offer = plan.details.cluster, plan.details.offer
        cloud = self._account(cluster.target)
        refuse_terms(offer, accepted=plan.spec.accept_terms)
        if plan.ssh_unknown:
            raise caller_address.AddressUnknown(plan.ssh_unknown)
        before = self._files.load()
        # New ranges for SSH are recorded once they are let in: until then the next `up` does it.
        let_in = before.ssh_cidrs if before is not None and plan.keep else ()
        self._files.save(replace(cluster, ssh_cidrs=let_in))
        public_key = ensure_key(self._files.cluster_folder.key_path)
        ensure = self._ensure(cloud, cluster, journal, say)

        def infrastructure_at(zone: Zone) -> Infrastructure:
            with self._files.network_lock(cluster.target, "up", say):
                infrastructure = cloud.prepare(cluster, offer, public_key, ensure)
                return cloud.prepare_zone(cluster, offer, infrastructure, zone, ensure)

        if plan.keep and let_in != cluster.ssh_cidrs:
            say(f"letting SSH in from {', '.join(cluster.ssh_cidrs)} …")
            with self._files.network_lock(cluster.target, "up", say):
                cloud.prepare(cluster, offer, public_key, ensure)
        context = LaunchContext(
            cloud=cloud,
            files=self._files,
            cluster=cluster,
            offer=offer,
            journal=journal,
            clock=self._clock,
            say=say,
        )
        count = len(plan.create) + len(plan.keep)
        instances = ensure_running(
            context, count, end=plan.end, infrastructure_at=infrastructure_at, public_key=public_key
        )
        if cluster.subnet_id is None and not cluster.public_ip and not plan.create:
            # Only this notices that the private network lost its NAT gateway.
            infrastructure_at(instances[0].zone)
        self._files.save(cluster)
        ends = ends_bill(cluster)
        if cluster.expires_at and isinstance(cloud, SchedulesEnd):
            ends &= self._schedule_end(cloud, cluster, offer, instances, infrastructure_at, ensure)
        if plan.create and cluster.expires_at and ends:
            say(describe(self.name).ending_sentence(cluster, offer))
        learn_launches(cloud, self._files, instances)
        return tuple(
            machine_of(instance, self._files, cluster, gpus=offer.gpus, python=plan.spec.python)
            for instance in instances
        )

    def _schedule_end(
        self,
        cloud: SchedulesEnd,
        cluster: CloudCluster,
        offer: Offer,
        machines: Sequence[Instance],
        infrastructure_at: Callable[[Zone], Infrastructure],
        ensure: Ensure,
    ) -> bool:
        """Schedule the end of the machines for the end of the cluster's time. Returns whether the cloud took it.

        A refusal is no failure of the machines: `ends` shows it, and the caller warns of the bill.
        """
        try:
            schedules = cloud.scheduled_ends(cluster.id)
            if not_scheduled(cluster, schedules, [machine.id for machine in machines]):
                infrastructure = infrastructure_at(machines[0].zone)
                cloud.schedule_end(cluster, offer, infrastructure, machines, ensure)
        except BadCredentials:
            raise
        except CloudError as error:
            ensure.say(f"the end of the machines is not scheduled: {error}")
            return False
        return True

    def ends(self) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the cluster's machines: see `provision.provider.EndingProvider`."""
        cluster, cloud = self._recorded()
        if cluster is None or cloud is None or (cluster.expires_at is None and cluster.idle_s is None):
            return ()
        listed = [machine for machine in cloud.instances(cluster.id) if machine.state != "ended"]
        if not listed:
            return ()
        idle = tuple(EndGuard(**asdict(end), armed=None) for end in idle_ends(cluster))
        if cluster.expires_at is None:
            return idle
        planned = describe(self.name).end_guards(cluster)
        schedules: tuple[ScheduledEnd, ...] = ()
        unreadable = ""
        if isinstance(cloud, SchedulesEnd):
            try:
                schedules = cloud.scheduled_ends(cluster.id)
            except CloudError as error:
                unreadable = str(error)
        alive = [machine.id for machine in listed if machine.alive]
        late = [machine.id for machine in listed] if is_late(cluster, datetime.now(UTC)) else []
        return (*guards(planned, cluster, schedules, alive, late=late, unreadable=unreadable), *idle)

    def adopt(self, target: Target, cluster_id: str, say: Say = quiet) -> None:
        """Rebuild the files of a cluster that another computer made, and let this computer reach its SSH.

        See `provision.provider.AdoptingProvider`.
        """
        cloud = self._account(target)
        assert isinstance(cloud, AdmitsKeys), f"{self.name} admits no keys"
        cluster = rebuild(cloud, self._files, cluster_id)
        journal = self._files.cluster_folder.journal
        public_key = ensure_key(self._files.cluster_folder.key_path)
        admitted = cloud.ssh_cidrs(cluster)
        self._files.save(replace(cluster, ssh_cidrs=admitted))
        missing = missing_ranges(caller_address.caller_cidrs(cluster.ssh_cidr), admitted)
        if cluster.ssh_cidr is not None:
            say(f"SSH is let in from {cluster.ssh_cidr}: elsewhere, --ssh-cidr of `gpuctl up` changes that")
        if not missing:
            return
        cluster = replace(cluster, ssh_cidrs=(*admitted, *missing))
        say(f"letting SSH in from {', '.join(missing)}, too …")
        with self._files.network_lock(cluster.target, "adopt", say):
            cloud.prepare(
                cluster, cloud.offer(cluster), public_key, self._ensure(cloud, cluster, journal, say)
            )
        self._files.save(cluster)

    def admit_key(self, machine: Machine) -> str:
        """Have the cloud let this cluster's key log in: see `provision.provider.AdoptingProvider`."""
        _, cloud = self._recorded()
        assert isinstance(cloud, AdmitsKeys), f"{self.name} admits no keys"
        return cloud.admit_key(machine.id, machine.user, ensure_key(self._files.cluster_folder.key_path))

    def strays(self) -> tuple[str, ...]:
        """Return the ids of machines of the cluster that no rank has: an instance pool of OCI made them."""
        return tuple(machine.id for machine in self._instances() if machine.alive and machine.rank is None)

    def find(self) -> tuple[Machine, ...]:
        """Return the cluster's machines by their tags, without ended ones."""
        cluster, cloud = self._recorded()
        if cluster is None or cloud is None:
            return ()
        alive = [m for m in cloud.instances(cluster.id) if m.alive and m.rank is not None]
        machines = cloud.with_addresses(sorted(alive, key=lambda m: m.rank or 0))
        return tuple(
            machine_of(machine, self._files, cluster, gpus=None, python=None) for machine in machines
        )

    def states(self) -> dict[str, MachineState]:
        """Return the state of every machine of the cluster that the cloud lists, also of ended ones, by id."""
        return {machine.id: STATES[machine.state] for machine in self._instances()}

    def refresh(self, machine: Machine) -> Machine:
        """Return the machine with its state; `unknown` for a machine that the cloud does not list."""
        return replace(machine, state=self.states().get(machine.id, "unknown"))

    def console(self, machine: Machine) -> str | None:
        """Return the end of the machine's serial console."""
        _, cloud = self._recorded()
        return cloud.console(machine.id) if cloud is not None else None

    def _cloud(self, account: Cloud) -> Cloud:
        return account

    def _findings(self, account: Cloud, cluster: CloudCluster, count: int) -> tuple[Finding, ...]:
        return account.check(cluster, count)

    def _recorded(self) -> tuple[CloudCluster, Cloud] | tuple[None, None]:
        """Return the recorded cluster, and the account and region that it is in."""
        record = self._files.load()
        return (None, None) if record is None else (record, self._account_of(record))

    def _instances(self) -> tuple[Instance, ...]:
        cluster, cloud = self._recorded()
        return () if cluster is None or cloud is None else cloud.instances(cluster.id)

    def _account_for(self, record: CloudCluster | None, spec: Spec) -> Cloud:
        try:
            return super()._account_for(record, spec)
        except (BadCredentials, InvalidInput) as error:
            refuse_unknown_shape(self.name, spec.shape or (record.shape if record else ""), error)
            raise

    def _watch_s(self, account: Cloud, cluster: CloudCluster) -> float:
        """Return how long machines and resources may still come up that the cloud does not list yet."""
        consistency_s = account.consistency_s
        try:
            launches = self._files.open_launches()
        except CorruptFile:
            return consistency_s
        ages: list[float] = []
        if recent := self._recent_makings(account, cluster):
            listed = {text for resource in account.resources() for text in (resource.id, resource.name)}
            ages += [age_s for made, age_s in recent if made not in listed]
        if launches:
            listed_of = Counter(machine.tags.get(LAUNCH) for machine in account.instances(cluster.id))
            now = datetime.now(UTC)
            ages += [
                (now - datetime.fromisoformat(launch.sent_at)).total_seconds()
                for launch in launches
                if listed_of[launch.id] < len(launch.ranks)
            ]
        return max(0.0, consistency_s - min(ages, default=consistency_s))
