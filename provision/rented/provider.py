"""The provider protocol for rented machines: what OCI and AWS have in common, which is nearly all of it.

The cluster's tags are the truth about what exists; the files here say what was asked for, and hold the keys
and the tokens of what was begun.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import CorruptFile, InvalidInput
from inventories.machine import Inventory, Machine, MachineState
from inventories.specs.spec import Spec
from provision.clouds import describe
from provision.errors import BadCredentials, CloudError, OtherAccount
from provision.findings import Finding
from provision.parallel import together
from provision.provider import Leftover, Plan
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
from provision.rented import teardown
from provision.rented.ends import ends_bill, guards, is_late, not_scheduled
from provision.rented.find_or_create import JournaledEnsure, all_gone, recent_makings
from provision.rented.interface import Cloud, Ensure, SchedulesEnd, connect, sdk
from provision.rented.launch.launch_in_zones import ensure_running
from provision.rented.launch.single_launch import LaunchContext
from provision.rented.machines import STATES, machine_of
from provision.rented.planning import caller_address
from provision.rented.planning.plan import Details, make_outline, make_plan, wanted_cluster
from provision.rented.planning.spec_checks import refuse_elsewhere, refuse_terms, refuse_unknown_shape
from provision.rented.state import CloudState
from provision.rented.tags import LAUNCH
from provision.ssh_keys import ensure_key
from provision.unsupported_options import refuse_unsupported, taken_by
from provision.waiting import Clock, Say, SystemClock, quiet

HONOURED = taken_by("clouds")
"""Fields of Spec that a cloud can honour; see `provision.unsupported_options`."""


class CloudProvider:
    """The machines of one cluster in one region of a cloud."""

    billed = True
    ends_machines = True

    def __init__(
        self,
        name: str,
        folder: ClusterFolder,
        *,
        clock: Clock | None = None,
        connect: Callable[[Target, Clock], Cloud] = connect,
    ) -> None:
        self.name = name
        self._files = CloudState(folder)
        self._clock = clock or SystemClock()
        self._connect = connect
        self._clouds: dict[Target, Cloud] = {}

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """As the protocol says. Asks the cloud what there is, by tag."""
        honoured = HONOURED - describe(self.name).unsupported
        refuse_unsupported(spec, self.name, honoured=honoured, because="it has no such thing")
        if spec.python is None and current is not None and current.machines:
            # Machines that join have the interpreter of those that are there.
            spec = replace(spec, python=current.machines[0].python)
        record = self._files.load()
        if record is not None:
            refuse_elsewhere(record, spec)
        return make_plan(self._cloud_for(record, spec), self._files, record, spec)

    def outline(self, spec: Spec) -> Plan:
        """The plan for an account that can't be asked: as if nothing of ours were there."""
        return make_outline(self.name, self._files, spec)

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """As the protocol says. Goes on where an interrupted one stopped."""
        assert isinstance(plan.details, Details)
        cluster, offer = plan.details.cluster, plan.details.offer
        cloud = self._cloud(cluster.target)
        refuse_terms(offer, accepted=plan.spec.accept_terms)
        if plan.ssh_unknown:
            raise caller_address.AddressUnknown(plan.ssh_unknown)
        before = self._files.load()
        # From where SSH is let in is recorded once it is so: until then the next `up` sees to it.
        let_in = before.ssh_cidrs if before is not None and plan.keep else ()
        self._files.save(replace(cluster, ssh_cidrs=let_in))
        public_key = ensure_key(self._files.cluster_folder.key_path)
        shared = self._files.network_journal(cluster.target)
        ensure = JournaledEnsure(
            journal, shared, clock=self._clock, consistency_s=cloud.consistency_s, say=say
        )

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
        instances = ensure_running(
            context,
            len(plan.create) + len(plan.keep),
            infrastructure_at=infrastructure_at,
            public_key=public_key,
        )
        if cluster.subnet_id is None and not cluster.public_ip and not plan.create:
            # Nothing else notices that their way out is gone.
            infrastructure_at(instances[0].zone)
        self._files.save(cluster)
        ends = ends_bill(cluster)
        if cluster.expires_at and isinstance(cloud, SchedulesEnd):
            ends &= self._schedule_end(cloud, cluster, offer, instances, infrastructure_at, ensure)
        if plan.create and cluster.expires_at and ends:
            say(describe(self.name).ending_sentence(cluster, offer))
        return tuple(
            machine_of(one, self._files, cluster, gpus=offer.gpus, python=plan.spec.python)
            for one in instances
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
        """Have the cloud end the machines at the end of the cluster's time. Returns whether it took that.

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
        if cluster is None or cloud is None or cluster.expires_at is None:
            return ()
        listed = [machine for machine in cloud.instances(cluster.id) if machine.state != "ended"]
        if not listed:
            return ()
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
        return guards(planned, cluster, schedules, alive, late=late, unreadable=unreadable)

    def strays(self) -> tuple[str, ...]:
        """Return the ids of machines of the cluster that no rank has: an instance pool of OCI made them."""
        cluster, cloud = self._recorded()
        if cluster is None or cloud is None:
            return ()
        return tuple(m.id for m in cloud.instances(cluster.id) if m.alive and m.rank is None)

    def find(self) -> tuple[Machine, ...]:
        """The cluster's machines by their tags, those that have ended left out."""
        cluster, cloud = self._recorded()
        if cluster is None or cloud is None:
            return ()
        alive = [m for m in cloud.instances(cluster.id) if m.alive and m.rank is not None]
        machines = cloud.with_addresses(sorted(alive, key=lambda m: m.rank or 0))
        return tuple(machine_of(one, self._files, cluster, gpus=None, python=None) for one in machines)

    def states(self) -> dict[str, MachineState]:
        """The state of every machine of the cluster that the cloud lists, those that ended among them, by id."""
        cluster, cloud = self._recorded()
        if cluster is None or cloud is None:
            return {}
        return {machine.id: STATES[machine.state] for machine in cloud.instances(cluster.id)}

    def refresh(self, machine: Machine) -> Machine:
        """As the protocol says. What the cloud does not list is not known to be gone."""
        return replace(machine, state=self.states().get(machine.id, "unknown"))

    def console(self, machine: Machine) -> str | None:
        """As the protocol says."""
        _, cloud = self._recorded()
        return cloud.console(machine.id) if cloud is not None else None

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """As the protocol says. The shared network goes with its last cluster."""
        cluster, cloud = self._recorded()
        if cluster is None or cloud is None:
            return ()  # the record is written before anything is asked of a cloud
        removed = teardown.remove(
            cloud,
            {cluster.id},
            network=lambda: self._files.network_lock(cluster.target, "down", say),
            network_gone=lambda: all_gone(self._files.network_journal(cluster.target)),
            clock=self._clock,
            say=say,
            watch_s=self._watch_s(cloud, cluster),
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
            cloud = self._cloud_for(record, spec)
        except BadCredentials as error:
            return (sdk(self.name), Finding(what="credentials", ok=False, detail=str(error)))
        asked = replace(
            wanted_cluster(self.name, self._files.name, record, spec, lives=record is not None),
            target=cloud.target,
        )
        findings, address = together(
            lambda: cloud.check(asked, spec.count or 1), lambda: caller_address.check(asked.ssh_cidr)
        )
        return (*findings, address)

    def _recorded(self) -> tuple[CloudCluster, Cloud] | tuple[None, None]:
        """The cluster that was asked for, and the account and region that it is in."""
        record = self._files.load()
        return (None, None) if record is None else (record, self._cloud_of(record, record.target))

    def _cloud_for(self, record: CloudCluster | None, spec: Spec) -> Cloud:
        """Where the machines are, or are to be."""
        target = Target(
            provider=self.name, region=spec.region, profile=spec.profile, compartment=spec.compartment
        )
        try:
            if record is not None:
                profile = spec.profile or record.target.profile
                return self._cloud_of(record, replace(record.target, profile=profile))
            return self._cloud(target)
        except (BadCredentials, InvalidInput) as error:
            refuse_unknown_shape(self.name, spec.shape or (record.shape if record else ""), error)
            raise

    def _cloud_of(self, record: CloudCluster, target: Target) -> Cloud:
        """Raises OtherAccount where the credentials are of somebody else than made the cluster."""
        cloud = self._cloud(target)
        made, now = record.target.account, cloud.target.account
        if made is not None and now is not None and made != now:
            raise OtherAccount(
                f"Cluster '{record.name}' is in the {self.name} account {made}, and the credentials in force are "
                f"of {now}. Nothing was looked at. Use those of {made}: by the environment, or --profile."
            )
        return cloud

    def _cloud(self, target: Target) -> Cloud:
        asked = replace(target, account=None)
        if asked not in self._clouds:
            self._clouds[asked] = self._connect(asked, self._clock)
        return self._clouds[asked]

    def _watch_s(self, cloud: Cloud, cluster: CloudCluster) -> float:
        """How long machines and parts may still come up that the cloud does not list yet."""
        try:
            launches = self._files.open_launches()
        except CorruptFile:
            return cloud.consistency_s
        journals = (self._files.cluster_folder.journal, self._files.network_journal(cluster.target))
        recent = [one for journal in journals for one in recent_makings(journal, cloud.consistency_s)]
        ages: list[float] = []
        if recent:
            listed = {word for resource in cloud.resources() for word in (resource.id, resource.name)}
            ages += [age_s for made, age_s in recent if made not in listed]
        if launches:
            seen = Counter(machine.tags.get(LAUNCH) for machine in cloud.instances(cluster.id))
            now = datetime.now(UTC)
            ages += [
                (now - datetime.fromisoformat(launch.sent_at)).total_seconds()
                for launch in launches
                if seen[launch.id] < len(launch.ranks)
            ]
        return max(0.0, cloud.consistency_s - min(ages, default=cloud.consistency_s))
