"""The base of all providers of rented machines: account, record, teardown, checks.

The cluster's tags are the truth about its resources. The files here have the request, the keys, and the tokens of
interrupted calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from inventories.disk.store import ClusterFolder, Journal
from inventories.specs.spec import Spec
from inventories.threads import together
from provision.clouds import describe
from provision.errors import BadCredentials, OtherAccount
from provision.findings import Finding
from provision.provider import Leftover
from provision.records import CloudCluster, Target
from provision.rented import teardown
from provision.rented.find_or_create import Ensure, all_gone, recent_makings
from provision.rented.interface import Cloud, sdk
from provision.rented.planning import caller_address
from provision.rented.planning.plan import requested_cluster
from provision.rented.planning.spec_checks import refuse_elsewhere
from provision.rented.state import CloudState
from provision.waiting import Clock, Say, SystemClock, quiet

Account = TypeVar("Account")
"""One account in one region: a `Cloud`, or a `KubernetesService` of a cloud."""


class RentedProvider(ABC, Generic[Account]):
    """The machines of one cluster in one region."""

    billed = True
    ends_machines = True

    def __init__(
        self,
        name: str,
        folder: ClusterFolder,
        connect: Callable[[Target, Clock], Account],
        clock: Clock | None,
    ) -> None:
        self.name = name
        self._files = CloudState(folder)
        self._clock = clock or SystemClock()
        self._connect = connect
        self._accounts: dict[Target, Account] = {}

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """Remove the cluster, and the shared network with its last cluster."""
        cluster = self._files.load()
        if cluster is None:
            return ()  # the record is written before the first request
        account = self._account_of(cluster)
        self._before_teardown(account, cluster, say)
        removed = teardown.remove(
            self._cloud(account),
            {cluster.id},
            network=lambda: self._files.network_lock(cluster.target, "down", say),
            network_gone=lambda: all_gone(self._files.network_journal(cluster.target)),
            clock=self._clock,
            say=say,
            watch_s=self._watch_s(account, cluster),
        )
        if removed.network_users:
            say(f"the network stays: it is used by {', '.join(removed.network_users)}")
        if not removed.leftovers:
            all_gone(self._files.cluster_folder.journal)
        return removed.leftovers

    def check(self, spec: Spec) -> tuple[Finding, ...]:
        """Return the findings on what would make `up` fail. Read-only."""
        record = self._record_for(spec)
        try:
            account = self._account_for(record, spec)
        except BadCredentials as error:
            return (sdk(self.name), Finding(what="credentials", ok=False, detail=str(error)))
        cluster = requested_cluster(self.name, self._files.name, record, spec, lives=record is not None)
        cluster = replace(cluster, target=self._cloud(account).target)
        findings, address = together(
            lambda: self._findings(account, cluster, spec.count or 1),
            lambda: caller_address.check(cluster.ssh_cidr),
        )
        return (*findings, address)

    @abstractmethod
    def _cloud(self, account: Account) -> Cloud: ...

    @abstractmethod
    def _findings(self, account: Account, cluster: CloudCluster, count: int) -> tuple[Finding, ...]: ...

    @abstractmethod
    def _watch_s(self, account: Account, cluster: CloudCluster) -> float:
        """Return how long resources may still come up that the cloud does not list yet."""

    def _before_teardown(self, account: Account, cluster: CloudCluster, say: Say) -> None:
        """Remove the contents of the machines that the cloud's own lists do not have."""

    def _record_for(self, spec: Spec) -> CloudCluster | None:
        """Return the cluster's record. Raises RefusedPlan for a spec of another region or compartment."""
        record = self._files.load()
        if record is not None:
            refuse_elsewhere(record, spec)
        return record

    def _ensure(self, account: Account, cluster: CloudCluster, journal: Journal, say: Say) -> Ensure:
        return Ensure(
            journal,
            self._files.network_journal(cluster.target),
            clock=self._clock,
            consistency_s=self._cloud(account).consistency_s,
            say=say,
        )

    def _recent_makings(self, account: Account, cluster: CloudCluster) -> list[tuple[str | None, float]]:
        """Return the id and the age of resources that the cloud may not list yet. `None`: the id is not known."""
        journals = (self._files.cluster_folder.journal, self._files.network_journal(cluster.target))
        within_s = self._cloud(account).consistency_s
        return [making for journal in journals for making in recent_makings(journal, within_s)]

    def _account_for(self, record: CloudCluster | None, spec: Spec) -> Account:
        """Return the account of the cluster's machines, also before they exist."""
        if record is not None:
            return self._account_of(record, spec.profile)
        return self._account(
            Target(provider=self.name, region=spec.region, profile=spec.profile, compartment=spec.compartment)
        )

    def _account_of(self, record: CloudCluster, profile: str | None = None) -> Account:
        """Return the account of the record. Raises OtherAccount if the credentials are of another account."""
        account = self._account(replace(record.target, profile=profile or record.target.profile))
        made, now = record.target.account, self._cloud(account).target.account
        if made is not None and now is not None and made != now:
            base = describe(self.name).base
            raise OtherAccount(
                f"Cluster '{record.name}' is in the {'' if base else f'{self.name} '}account {made}, and the "
                f"credentials in force are of {now}. Nothing was looked at. Use those of {made}: by the environment, "
                "or --profile."
            )
        return account

    def _account(self, target: Target) -> Account:
        requested = replace(target, account=None)
        if requested not in self._accounts:
            self._accounts[requested] = self._connect(requested, self._clock)
        return self._accounts[requested]
