"""Provider `eks`: from nothing to a Kubernetes cluster whose nodes have the shape that is asked for, and back.

The tags of AWS's resources are the truth about what exists, as for virtual machines; the files are the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inventories.disk.files import write_atomic
from inventories.disk.store import ClusterFolder, Journal
from inventories.machine import Inventory, Machine
from inventories.spec import Spec
from provision.clock import Clock, SystemClock
from provision.cloud import teardown
from provision.cloud.find_or_create import JournaledEnsure, all_gone, recent_makings
from provision.cloud.planning import caller_address
from provision.cloud.planning.plan import wanted_cluster
from provision.cloud.planning.spec_checks import refuse_elsewhere
from provision.cloud.records import CloudCluster, Finding, Target
from provision.cloud.state import CloudState
from provision.eks import api_server, build, checks, kubeconfig, names
from provision.eks.cloud import EksCloud, sdk
from provision.eks.infrastructure.control_plane import describe
from provision.eks.plan import Details, make_plan
from provision.eks.workers import Workers
from provision.errors import BadCredentials, Denied, Exists, OtherAccount, Unclear
from provision.pricing.spending import ending_sentence
from provision.provider import Leftover, Plan, Say, quiet
from provision.unsupported_options import refuse_unsupported

HONOURED = frozenset(
    {"shape", "region", "profile", "disk_gb", "spot", "ssh_cidr", "ttl_s", "public_ip", "image"}
)
WORKS = ("ACTIVE", "UPDATING")
"""States of a control plane whose API server answers."""


def provider(folder: ClusterFolder) -> "EksProvider":
    """The provider for one cluster."""
    return EksProvider(folder)


def _connect(target: Target, clock: Clock) -> EksCloud:
    return EksCloud(target, clock=clock)


class EksProvider:
    """The machines of one cluster in one region."""

    name = names.PROVIDER
    billed = True
    ends_machines = True

    def __init__(
        self,
        folder: ClusterFolder,
        *,
        clock: Clock | None = None,
        connect: Callable[[Target, Clock], EksCloud] = _connect,
    ) -> None:
        self._files = CloudState(folder)
        self._clock = clock or SystemClock()
        self._workers = Workers(folder=folder, clock=self._clock)
        self._connect = connect
        self._clouds: dict[Target, EksCloud] = {}

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:  # noqa: ARG002 - AWS itself is asked
        """As the protocol says."""
        refuse_unsupported(
            spec,
            self.name,
            honoured=HONOURED,
            because="its machines are nodes of a Kubernetes cluster, in a network of gpuctl's",
        )
        record = self._files.load()
        if record is not None:
            refuse_elsewhere(record, spec)
        target = Target(provider=self.name, region=spec.region, profile=spec.profile)
        cloud = self._cloud(target) if record is None else self._of(record, spec.profile)
        return make_plan(cloud, self._files, record, spec, self._machines(cloud, record))

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """As the protocol says. Goes on where an interrupted one stopped: each part is found, or made."""
        assert isinstance(plan.details, Details)
        cluster, offer = plan.details.cluster, plan.details.offer
        if plan.ssh_unknown:
            raise caller_address.AddressUnknown(plan.ssh_unknown)
        cloud = self._cloud(cluster.target)
        self._files.save(cluster)
        ensure = JournaledEnsure(
            journal,
            self._files.network_journal(cluster.target),
            clock=self._clock,
            consistency_s=cloud.consistency_s,
            say=say,
        )
        work = build.Work(
            api=cloud.api,
            maker=cloud.maker,
            clock=self._clock,
            cluster=cluster,
            offer=offer,
            ensure=ensure,
            say=say,
            network=lambda: self._files.network_lock(cluster.target, "up", say),
        )
        told = build.control_plane(work)
        self._write_kubeconfig(cluster, told)
        api_server.wait_ready(self._clock, cluster, told, say)
        build.node_groups(work, told, plan.details.count)
        if plan.create and cluster.expires_at:
            say(ending_sentence(cluster.target, offer, cluster.expires_at))
        if plan.create:
            self._workers.create(cluster, offer, plan.details.count, journal, say)
        return self._workers.find(plan.spec.python)

    def find(self) -> tuple[Machine, ...]:
        """As the protocol says."""
        record = self._files.load()
        return () if record is None else self._machines(self._of(record), record)

    def refresh(self, machine: Machine) -> Machine:
        """As the protocol says."""
        return self._workers.refresh(machine)

    def console(self, machine: Machine) -> str | None:  # noqa: ARG002 - a pod has none
        """As the protocol says."""
        return None

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """As the protocol says. The shared network goes with its last cluster."""
        cluster = self._files.load()
        if cluster is None:
            return ()
        cloud = self._of(cluster)
        self._remove_workers(cloud, cluster, say)
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
        target = Target(provider=self.name, region=spec.region, profile=spec.profile)
        try:
            cloud = self._cloud(target) if record is None else self._of(record, spec.profile)
        except BadCredentials as error:
            return (sdk(), Finding(what="credentials", ok=False, detail=str(error)))
        wanted = wanted_cluster(self.name, self._files.name, record, spec, lives=record is not None)
        asked = replace(wanted, target=cloud.target)
        found = checks.check(cloud.api, asked, spec.count or 1)
        return (*found, caller_address.check(asked.ssh_cidr))

    def _remove_workers(self, cloud: EksCloud, cluster: CloudCluster, say: Say) -> None:
        """Remove what is in the cluster, as far as that can be: the rest goes with its control plane."""
        try:
            told = describe(cloud.api, cluster)
            if told is not None and told["status"] in WORKS:
                for left in self._workers.remove(say):
                    say(f"the {left.kind} {left.id} goes with the control plane: {left.reason}")
        except (Denied, Unclear, Exists, BadCredentials) as error:
            say(f"what is in the cluster goes with its control plane: {error}")

    def _watch_s(self, cloud: EksCloud, cluster: CloudCluster) -> float:
        """How long parts may still come up that AWS does not list yet."""
        journals = (self._files.cluster_folder.journal, self._files.network_journal(cluster.target))
        recent = [one for journal in journals for one in recent_makings(journal, cloud.consistency_s)]
        ages = [age_s for made, age_s in recent if made is None]
        return max(0.0, cloud.consistency_s - min(ages, default=cloud.consistency_s))

    def _machines(self, cloud: EksCloud, record: CloudCluster | None) -> tuple[Machine, ...]:
        """Those that there are; none before the API server is there to tell of them."""
        told = describe(cloud.api, record) if record is not None else None
        return () if told is None or told["status"] not in WORKS else self._workers.find()

    def _write_kubeconfig(self, cluster: CloudCluster, told: Mapping[str, Any]) -> None:
        write_atomic(self._files.cluster_folder.kubeconfig_path, kubeconfig.render(cluster, told))

    def _of(self, record: CloudCluster, profile: str | None = None) -> EksCloud:
        """Raises OtherAccount where the credentials are of somebody else than made the cluster."""
        cloud = self._cloud(replace(record.target, profile=profile or record.target.profile))
        made, now = record.target.account, cloud.target.account
        if made is not None and made != now:
            raise OtherAccount(
                f"Cluster '{record.name}' is in the AWS account {made}, and the credentials in force are of {now}. "
                f"Nothing was looked at. Use those of {made}: by the environment, or --profile."
            )
        return cloud

    def _cloud(self, target: Target) -> EksCloud:
        asked = replace(target, account=None)
        if asked not in self._clouds:
            self._clouds[asked] = self._connect(asked, self._clock)
        return self._clouds[asked]
