"""The provider protocol for rented machines: what OCI and AWS have in common, which is nearly all of it.

The cluster's tags are the truth about what exists; the files here say what was asked for, and hold the keys
and the tokens of what was begun.
"""

import getpass
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories.driver import unknown_branch
from inventories.errors import CorruptFile, InvalidInput
from inventories.machine import Inventory, Machine, MachineState
from inventories.spec import Spec
from inventories.store import ClusterFolder, Journal
from provision.clock import Clock, SystemClock
from provision.cloud import teardown
from provision.cloud.find_or_create import JournaledEnsure, all_gone, recent_makings
from provision.cloud.interface import Cloud
from provision.cloud.launching import Launching
from provision.cloud.planning import caller_address, contents
from provision.cloud.planning.drivers import expected_plan
from provision.cloud.planning.spec_checks import (
    NETWORK,
    boot_image,
    count_of,
    merge,
    recorded_image,
    refuse_changes,
    refuse_elsewhere,
    refuse_expired,
    refuse_gone_image,
    refuse_other_network,
    refuse_over_limits,
    refuse_stopped,
    refuse_terms,
)
from provision.cloud.records import (
    CloudCluster,
    Finding,
    Infrastructure,
    Instance,
    InstanceState,
    Offer,
    Resource,
    Target,
    Zone,
)
from provision.cloud.state import CloudState, Launch
from provision.cloud.tags import CLUSTER, LAUNCH, OWNER
from provision.errors import BadCredentials, CloudError, OtherAccount, UnknownShape
from provision.pricing.catalog import SHAPES, nearest_shapes, nvidia_by_name
from provision.pricing.plan_price import PlanPrice
from provision.pricing.prices import load as load_prices
from provision.pricing.spending import ending_sentence, refuse_over_max_cost
from provision.provider import Leftover, Plan, PlannedMachine, Say, quiet
from provision.registry import connect, describe, outline, sdk
from provision.ssh_keys import ensure_key
from provision.unsupported import refuse_unsupported

HONOURED = frozenset(
    {
        "shape",
        "region",
        "image",
        "driver",
        "accept_terms",
        "disk_gb",
        "spot",
        "ssh_cidr",
        "ttl_s",
        "subnet_id",
        "bastion",
        "profile",
    }
    | {"compartment", "public_ip", "ssh_port"}
)
"""Fields of Spec that a cloud can honour; see `provision.unsupported`."""

_STATES: dict[InstanceState, MachineState] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "ending": "gone",
    "ended": "gone",
}


@dataclass(frozen=True, kw_only=True)
class _Details:
    """What `create` needs beside the plan."""

    cluster: CloudCluster
    offer: Offer


class CloudProvider:
    """The machines of one cluster in one region of a cloud."""

    billed = True

    def __init__(
        self,
        name: str,
        folder: ClusterFolder,
        *,
        clock: Clock | None = None,
        connect: Callable[[Target, Clock], Cloud] = connect,
    ) -> None:
        self.name = name
        self._folder = CloudState(folder)
        self._clock = clock or SystemClock()
        self._connect = connect
        self._clouds: dict[Target, Cloud] = {}

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:
        """As the protocol says. Asks the cloud what there is, by tag."""
        honoured = HONOURED - describe(self.name).unsupported
        refuse_unsupported(spec, self.name, honoured=honoured, because="its accounts have no such thing")
        if spec.python is None and current is not None and current.machines:
            # Machines that join have the interpreter of those that are there.
            spec = replace(spec, python=current.machines[0].python)
        record = self._folder.load()
        if record is not None:
            refuse_elsewhere(record, spec)
        cloud = self._cloud_for(record, spec)
        machines = cloud.instances(record.id) if record else ()
        alive = {m.rank: m for m in machines if m.alive and m.rank is not None}
        open_ranks = {rank for launch in self._open_launches() for rank in launch.ranks}
        lives = bool(alive or open_ranks)
        count = count_of(spec, self._folder.name, max((*alive, *open_ranks), default=-1) + 1)
        wanted = replace(self._wanted(spec, record, lives=lives), target=cloud.target)
        wanted = replace(wanted, boots_from=wanted.boots_from or boot_image(alive.values()))
        if record is not None and lives:
            refuse_changes(record, wanted)
        refuse_stopped(self._folder.name, alive.values())
        create = contents.to_create(wanted, machines, set(range(count)) - set(alive))
        if create:
            refuse_expired(wanted, datetime.now(UTC))
        offer = self._offer(cloud, wanted, terms=spec.accept_terms or spec.ask_terms)
        if create:
            refuse_gone_image(offer, self._folder.name)
        else:
            offer = replace(offer, terms=None)  # what is not used needs no terms
        wanted = replace(wanted, boots_from=recorded_image(wanted, offer))
        moved = record is not None and any(getattr(record, name) != getattr(wanted, name) for name in NETWORK)
        if record is not None and moved:
            refuse_other_network(record, wanted, cloud.resources(), private=bool(offer.network_hourly_usd))
        refuse_over_limits(offer, len(create))
        cidrs, unknown = caller_address.planned_cidrs(wanted.ssh_cidr)
        wanted = replace(wanted, ssh_cidrs=cidrs)
        price = self._price(wanted, offer, count)
        refuse_over_max_cost(price.most_hourly_usd, wanted.ttl_s, wanted.max_cost_usd, wanted.target)
        kept = [machine for _, machine in sorted(alive.items())]
        end = tuple(sorted(m.id for m in machines if m.alive and m.id not in {m.id for m in kept}))
        # Machines that join stand where the others are.
        there = replace(offer, zones=(kept[0].zone,)) if kept else offer
        let_in = record.ssh_cidrs if record is not None else ()
        changes = bool(create) or set(let_in) != set(wanted.ssh_cidrs)
        resources, unseen = self._resources(cloud)
        preview = cloud.preview(wanted, there, contents.new_machines(create), resources, let_in)
        own = contents.resources(wanted, offer, price, create=create, keep=[m.id for m in kept], end=end)
        return Plan(
            spec=spec,
            provider=self.name,
            region=wanted.target.region,
            create=create,
            end=end,
            keep=tuple(self._machine(machine, offer.gpus, wanted, spec.python) for machine in kept),
            price=price,
            free=False,
            requests=(
                *contents.ending_requests(self.name, end),
                *(preview.requests if changes else ()),
            ),
            resources=(*own, *contents.network(preview, offer, changes=changes)),
            notes=self._notes(
                cloud, wanted, offer, create, known=record is not None, unseen=unseen if changes else None
            ),
            image=offer.image_name,
            image_why=offer.image_why,
            driver=offer.driver,
            terms=offer.terms,
            ssh_unknown=unknown,
            **contents.conditions(wanted, offer, lives=lives),
            details=_Details(cluster=wanted, offer=offer),
        )

    def outline(self, spec: Spec) -> Plan:
        """The plan for an account that can't be asked: as if nothing of ours were there."""
        wanted = self._wanted(spec, None, lives=False)
        wanted = replace(wanted, ssh_cidrs=(wanted.ssh_cidr or caller_address.YOUR_ADDRESS,))
        create = contents.to_create(wanted, (), range(spec.count or 1))
        offer, preview = outline(wanted, contents.new_machines(create))
        price = self._price(wanted, offer, len(create))
        if price.most_hourly_usd is not None:
            refuse_over_max_cost(price.most_hourly_usd, wanted.ttl_s, wanted.max_cost_usd, wanted.target)
        own = contents.resources(wanted, offer, price, create=create, keep=(), end=())
        driver = expected_plan(
            wanted.driver,
            wanted.image,
            shape=wanted.shape,
            nvidia=nvidia_by_name(wanted.shape),
            default=describe(self.name).default_driver,
        )
        return Plan(
            spec=spec,
            provider=self.name,
            region=wanted.target.region,
            create=create,
            keep=(),
            price=price,
            free=False,
            requests=preview.requests,
            resources=(*own, *preview.resources),
            notes=(*offer.notes, *unknown_branch(driver), *contents.way_in(wanted)),
            image=offer.image_name,
            image_why="as asked for"
            if wanted.image
            else "the account can't be asked which images it can have",
            driver=driver,
            terms=offer.terms,
            **contents.conditions(wanted, offer, lives=False),
        )

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """As the protocol says. Goes on where an interrupted one stopped."""
        assert isinstance(plan.details, _Details)
        cluster, offer = plan.details.cluster, plan.details.offer
        cloud = self._cloud(cluster.target)
        refuse_terms(offer, accepted=plan.spec.accept_terms)
        if plan.ssh_unknown:
            raise caller_address.AddressUnknown(plan.ssh_unknown)
        before = self._folder.load()
        # From where SSH is let in is recorded once it is so: until then the next `up` sees to it.
        let_in = before.ssh_cidrs if before is not None and plan.keep else ()
        self._folder.save(replace(cluster, ssh_cidrs=let_in))
        public_key = ensure_key(self._folder.cluster_folder.key_path)
        shared = self._folder.network_journal(cluster.target)
        ensure = JournaledEnsure(
            journal, shared, clock=self._clock, consistency_s=cloud.consistency_s, say=say
        )

        def infrastructure_at(zone: Zone) -> Infrastructure:
            with self._folder.network_lock(cluster.target, "up", say):
                infrastructure = cloud.prepare(cluster, offer, public_key, ensure)
                return cloud.prepare_zone(cluster, offer, infrastructure, zone, ensure)

        if plan.keep and let_in != cluster.ssh_cidrs:
            say(f"letting SSH in from {', '.join(cluster.ssh_cidrs)} …")
            with self._folder.network_lock(cluster.target, "up", say):
                cloud.prepare(cluster, offer, public_key, ensure)
        gang = Launching(
            cloud,
            self._folder,
            cluster,
            offer,
            infrastructure_at=infrastructure_at,
            public_key=public_key,
            journal=journal,
            clock=self._clock,
            say=say,
        )
        instances = gang.fill(len(plan.create) + len(plan.keep))
        if cluster.subnet_id is None and not cluster.public_ip and not plan.create:
            # Nothing else notices that their way out is gone.
            infrastructure_at(instances[0].zone)
        self._folder.save(cluster)
        if plan.create and cluster.expires_at:
            say(ending_sentence(cluster.target, offer, cluster.expires_at))
        return tuple(self._machine(instance, offer.gpus, cluster, plan.spec.python) for instance in instances)

    def find(self) -> tuple[Machine, ...]:
        """The cluster's machines by their tags, those that have ended left out."""
        cluster, cloud = self._recorded()
        if cluster is None or cloud is None:
            return ()
        alive = [m for m in cloud.instances(cluster.id) if m.alive and m.rank is not None]
        machines = cloud.with_addresses(sorted(alive, key=lambda m: m.rank or 0))
        return tuple(self._machine(machine, None, cluster, None) for machine in machines)

    def states(self) -> dict[str, MachineState]:
        """The state of every machine of the cluster that the cloud lists, those that ended among them, by id."""
        cluster, cloud = self._recorded()
        if cluster is None or cloud is None:
            return {}
        return {machine.id: _STATES[machine.state] for machine in cloud.instances(cluster.id)}

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
            network=lambda: self._folder.network_lock(cluster.target, "down", say),
            network_gone=lambda: all_gone(self._folder.network_journal(cluster.target)),
            clock=self._clock,
            say=say,
            watch_s=self._watch_s(cloud, cluster),
        )
        if removed.network_users:
            say(f"the network stays: it is used by {', '.join(removed.network_users)}")
        if not removed.leftovers:
            all_gone(self._folder.cluster_folder.journal)
        return removed.leftovers

    def _resources(self, cloud: Cloud) -> tuple[tuple[Resource, ...], CloudError | None]:
        """What is there of ours beside machines; or why it could not be looked at."""
        try:
            return cloud.resources(), None
        except BadCredentials:
            raise
        except CloudError as error:
            return (), error

    def _notes(
        self,
        cloud: Cloud,
        cluster: CloudCluster,
        offer: Offer,
        create: Sequence[PlannedMachine],
        *,
        known: bool,
        unseen: CloudError | None,
    ) -> tuple[str, ...]:
        """What a person should know before they say yes."""
        notes = [*offer.notes, *unknown_branch(offer.driver)] if create else []
        if unseen is not None:
            notes.append(f"what exists already could not be looked at, so all is shown as new: {unseen}")
        if create:
            notes += contents.way_in(cluster)
        seen = cluster.ssh_cidrs != (caller_address.YOUR_ADDRESS,)
        if create and seen and not cluster.public_ip and cluster.ssh_cidr is None:
            notes.append(
                f"SSH is let in from {', '.join(cluster.ssh_cidrs)}, which is where this computer is seen: a jump "
                "host or a VPN comes from another address, which --ssh-cidr names"
            )
        if not known:
            others = [
                m for m in cloud.instances() if m.state != "ended" and m.tags.get(CLUSTER) == cluster.name
            ]
            if others:
                owners = ", ".join(sorted({machine.tags.get(OWNER, "unknown") for machine in others}))
                notes.append(
                    f"another cluster named {cluster.name} is there, with {len(others)} machines, made by "
                    f"{owners}: it is not in the files here, and `gpuctl reap --dry-run` shows it"
                )
        return tuple(notes)

    def check(self, spec: Spec) -> tuple[Finding, ...]:
        """What would make `up` fail. Read-only."""
        record = self._folder.load()
        if record is not None:
            refuse_elsewhere(record, spec)
        try:
            cloud = self._cloud_for(record, spec)
        except BadCredentials as error:
            return (sdk(self.name), Finding(what="credentials", ok=False, detail=str(error)))
        asked = replace(self._wanted(spec, record, lives=record is not None), target=cloud.target)
        return (*cloud.check(asked, spec.count or 1), caller_address.check(asked.ssh_cidr))

    def _recorded(self) -> tuple[CloudCluster, Cloud] | tuple[None, None]:
        """The cluster that was asked for, and the account and region that it is in."""
        record = self._folder.load()
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
            self._refuse_unknown(spec.shape or (record.shape if record else ""), error)
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

    def _offer(self, cloud: Cloud, cluster: CloudCluster, *, terms: bool) -> Offer:
        try:
            return cloud.offer(cluster, terms=terms)
        except BadCredentials as error:
            self._refuse_unknown(cluster.shape, error)
            raise

    def _refuse_unknown(self, shape: str, error: Exception) -> None:
        """A shape that the catalog lacks, and of which the cloud can't be asked, is most likely misspelt."""
        if not shape or shape in SHAPES:
            return
        near = nearest_shapes(shape)
        raise UnknownShape(
            f"No shape '{shape}' is in the catalog, and {self.name} can't be asked for it: {error}"
            + (f" The nearest are {', '.join(near)}." if near else "")
        ) from error

    def _wanted(self, spec: Spec, record: CloudCluster | None, *, lives: bool) -> CloudCluster:
        fresh = CloudCluster(
            name=self._folder.name,
            id=record.id if record else secrets.token_hex(8),
            owner=_owner(),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            target=record.target
            if record
            else Target(
                provider=self.name, region=spec.region, profile=spec.profile, compartment=spec.compartment
            ),
            shape="",
        )
        return merge(spec, record, fresh, lives=lives, now=datetime.now(UTC))

    def _price(self, cluster: CloudCluster, offer: Offer, count: int) -> PlanPrice:
        """Of `count` machines: refreshed prices win over those of this release; one that varies is the offer's."""
        prices, region = load_prices(self._folder.home), cluster.target.region
        price = prices.of(cluster.shape, region)
        on_demand_usd = price.usd_per_hour if price else None
        spot_share = describe(self.name).spot_share
        varies = cluster.spot and spot_share is None
        each_usd = offer.hourly_usd if varies else on_demand_usd
        if cluster.spot and spot_share is not None and each_usd is not None:
            each_usd *= spot_share
        return contents.price_of(
            cluster,
            offer,
            count,
            each_usd,
            varies=varies,
            most_usd=on_demand_usd if varies else None,
            disk_usd_per_gb_month=prices.disk_usd_per_gb_month(self.name, region),
        )

    def _open_launches(self) -> tuple[Launch, ...]:
        return tuple(launch for launch in self._folder.launches() if not launch.settled)

    def _watch_s(self, cloud: Cloud, cluster: CloudCluster) -> float:
        """How long machines and parts may still come up that the cloud does not list yet."""
        try:
            launches = self._open_launches()
        except CorruptFile:
            return cloud.consistency_s
        journals = (self._folder.cluster_folder.journal, self._folder.network_journal(cluster.target))
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

    def _machine(
        self, instance: Instance, gpus: int | None, cluster: CloudCluster, python: str | None
    ) -> Machine:
        launch = next((one for one in self._folder.launches() if one.id == instance.tags.get(LAUNCH)), None)
        assert instance.rank is not None
        return Machine(
            name=f"{cluster.name}-{instance.rank}",
            rank=instance.rank,
            state=_STATES[instance.state],
            host=(instance.private_ip if cluster.bastion else instance.public_ip)
            or instance.private_ip
            or "",
            port=cluster.ssh_port,
            user=launch.user if launch else describe(self.name).default_user,
            private_ip=instance.private_ip or "",
            gpus=gpus,
            id=instance.id,
            shape=instance.shape,
            key_file=self._folder.cluster_folder.key_path,
            python=python,
            host_key=launch.host_key(instance.rank) if launch else None,
            jump=cluster.bastion,
            launched_at=instance.launched_at,
        )


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:100]
