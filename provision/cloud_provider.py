"""The provider protocol for rented machines: what OCI and AWS have in common, which is nearly all of it.

The cluster's tags are the truth about what exists; the files here say what was asked for, and hold the keys
and the tokens of what was begun.
"""

import getpass
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventories import lock
from inventories.errors import CorruptFile, InvalidInput
from inventories.machine import Inventory, Machine, MachineState
from inventories.spec import Spec
from inventories.store import ClusterFolder, Journal
from provision import teardown
from provision.caller import caller_cidrs
from provision.catalog import SHAPES, nearest_shapes
from provision.clock import Clock, SystemClock
from provision.cloud import (
    Cloud,
    CloudCluster,
    Finding,
    Ground,
    Instance,
    InstanceState,
    Offer,
    Place,
    Target,
)
from provision.cloud_folder import CloudFolder, Launch, network_name
from provision.clouds import connect, outline
from provision.ensure import JournaledEnsure, youngest_intent_s
from provision.errors import BadCredentials, RefusedPlan, UnknownShape
from provision.gang import Gang
from provision.keys import ensure_key
from provision.limits import ending_sentence, expires_at, refuse_over_max_cost
from provision.prices import price_of
from provision.provider import Leftover, Plan, PlannedMachine, Say, quiet
from provision.tags import LAUNCH
from provision.unsupported import refuse_unsupported

NETWORK_LOCK_WAIT_S = 300.0

HONOURED = frozenset(
    {"shape", "region", "image", "disk_gb", "spot", "ssh_cidr", "ttl_s", "subnet_id", "bastion", "profile"}
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
        self._folder = CloudFolder(folder)
        self._clock = clock or SystemClock()
        self._connect = connect
        self._clouds: dict[Target, Cloud] = {}

    def plan(self, spec: Spec, current: Inventory | None) -> Plan:  # noqa: ARG002 - the cloud knows better
        """As the protocol says. Asks the cloud what there is, by tag."""
        refuse_unsupported(spec, self.name, honoured=HONOURED, because="it rents machines")
        record = self._folder.load()
        wanted = self._wanted(spec, record)
        cloud = self._cloud_for(wanted)
        wanted = replace(wanted, target=cloud.target)
        machines = cloud.instances(record.id) if record else ()
        alive = {m.rank: m for m in machines if m.alive and m.rank is not None}
        kept = {machine.id for machine in alive.values()}
        open_ranks = {rank for launch in self._open_launches() for rank in launch.ranks}
        have = max((*alive, *open_ranks), default=-1) + 1
        count = self._count(spec, have)
        if record and (alive or open_ranks):
            self._refuse_changes(record, wanted)
        self._refuse_stopped(alive.values())
        offer = self._offer(cloud, wanted)
        wanted = replace(wanted, ssh_cidrs=caller_cidrs(wanted.ssh_cidr))
        each = self._hourly_usd(wanted, offer)
        hourly = None if each is None else each * count
        refuse_over_max_cost(hourly, wanted.ttl_s, spec.max_cost_usd)
        create = tuple(
            PlannedMachine(
                name=f"{self._folder.name}-{rank}",
                rank=rank,
                shape=offer.shape,
                replaces=next((m.id for m in machines if m.rank == rank), None),
            )
            for rank in range(count)
            if rank not in alive
        )
        surplus = tuple(sorted(m.id for m in machines if m.alive and m.id not in kept))
        return Plan(
            spec=spec,
            provider=self.name,
            region=wanted.target.region,
            create=create,
            end=surplus,
            keep=tuple(self._machine(m, offer.gpus, wanted, spec.python) for _, m in sorted(alive.items())),
            hourly_usd=hourly,
            free=False,
            actions=self._actions(cloud, wanted, offer, len(create)),
            details=_Details(cluster=wanted, offer=offer),
        )

    def outline(self, spec: Spec) -> Plan:
        """The plan for an account that can't be asked: as if nothing of ours were there."""
        wanted = self._wanted(spec, None)
        wanted = replace(wanted, ssh_cidrs=(wanted.ssh_cidr or "<your address>/32",))
        count = spec.count or 1
        price = price_of(self._folder.home, wanted.shape, wanted.target.region) if not wanted.spot else None
        names = [(f"{self._folder.name}-{rank}", rank) for rank in range(count)]
        return Plan(
            spec=spec,
            provider=self.name,
            region=wanted.target.region,
            create=tuple(PlannedMachine(name=name, rank=rank, shape=wanted.shape) for name, rank in names),
            keep=(),
            hourly_usd=price.usd_per_hour * count if price else None,
            free=False,
            actions=outline(wanted, count),
        )

    def create(self, plan: Plan, journal: Journal, say: Say = quiet) -> tuple[Machine, ...]:
        """As the protocol says. Goes on where an interrupted one stopped."""
        assert isinstance(plan.details, _Details)
        cluster, offer = plan.details.cluster, plan.details.offer
        cloud = self._cloud(cluster.target)
        before = self._folder.load()
        self._folder.save(cluster)
        public_key = ensure_key(self._folder.cluster_folder.key_path)
        shared = self._folder.network_journal(cluster)
        ensure = JournaledEnsure(journal, shared, clock=self._clock, consistency_s=cloud.consistency_s)

        def ground_at(place: Place) -> Ground:
            with self._network(cluster, "up", say):
                ground = cloud.prepare(cluster, offer, public_key, ensure)
                return cloud.prepare_place(cluster, offer, ground, place, ensure)

        gang = Gang(
            cloud,
            self._folder,
            cluster,
            offer,
            ground_at=ground_at,
            public_key=public_key,
            clock=self._clock,
            say=say,
        )
        if plan.keep and before is not None and before.ssh_cidrs != cluster.ssh_cidrs:
            say(f"letting SSH in from {', '.join(cluster.ssh_cidrs)} …")
            with self._network(cluster, "up", say):
                cloud.prepare(cluster, offer, public_key, ensure)
        instances = gang.fill(len(plan.create) + len(plan.keep))
        if plan.create and cluster.expires_at:
            say(ending_sentence(self.name, offer, cluster.expires_at))
        return tuple(self._machine(instance, offer.gpus, cluster, plan.spec.python) for instance in instances)

    def find(self) -> tuple[Machine, ...]:
        """The cluster's machines by their tags, those that have ended left out."""
        cluster = self._folder.load()
        if cluster is None:
            return ()
        cloud = self._cloud(cluster.target)
        alive = [m for m in cloud.instances(cluster.id) if m.alive and m.rank is not None]
        machines = cloud.with_addresses(sorted(alive, key=lambda m: m.rank or 0))
        return tuple(self._machine(machine, None, cluster, None) for machine in machines)

    def refresh(self, machine: Machine) -> Machine:
        """As the protocol says."""
        cluster = self._folder.load()
        if cluster is None:
            return replace(machine, state="unknown")
        states = {m.id: _STATES[m.state] for m in self._cloud(cluster.target).instances(cluster.id)}
        return replace(machine, state=states.get(machine.id, "gone"))

    def destroy(self, say: Say = quiet) -> tuple[Leftover, ...]:
        """As the protocol says. The shared network goes with its last cluster."""
        cluster = self._folder.load()
        if cluster is None:
            return ()  # it is written before anything is asked of a cloud
        cloud = self._cloud(cluster.target)
        removed = teardown.remove(
            cloud,
            {cluster.id},
            network=lambda: self._network(cluster, "down", say),
            clock=self._clock,
            say=say,
            watch_s=self._watch_s(cloud, cluster),
        )
        if removed.network_users:
            say(f"the network stays: it is used by {', '.join(removed.network_users)}")
        return removed.leftovers

    def _actions(self, cloud: Cloud, cluster: CloudCluster, offer: Offer, count: int) -> tuple[str, ...]:
        if not count:
            return ()
        end = (ending_sentence(self.name, offer, cluster.expires_at),) if cluster.expires_at else ()
        return (*cloud.preview(cluster, offer, count), *end)

    def check(self, spec: Spec) -> tuple[Finding, ...]:
        """What would make `up` fail. Read-only."""
        wanted = self._wanted(spec, self._folder.load())
        cloud = self._cloud(wanted.target)
        return cloud.check(replace(wanted, target=cloud.target), spec.count or 1)

    def _cloud(self, target: Target) -> Cloud:
        if target not in self._clouds:
            cloud = self._connect(target, self._clock)
            self._clouds |= {target: cloud, cloud.target: cloud}
        return self._clouds[target]

    def _network(self, cluster: CloudCluster, command: str, say: Say) -> AbstractContextManager[None]:
        return lock.hold(
            self._folder.networks / f"{network_name(cluster)}.lock",
            subject=f"the network of {network_name(cluster)}",
            command=command,
            wait_s=NETWORK_LOCK_WAIT_S,
            on_wait=say,
        )

    def _cloud_for(self, wanted: CloudCluster) -> Cloud:
        try:
            return self._cloud(wanted.target)
        except (BadCredentials, InvalidInput) as error:
            self._refuse_unknown(wanted.shape, error)
            raise

    def _offer(self, cloud: Cloud, wanted: CloudCluster) -> Offer:
        try:
            return cloud.offer(wanted)
        except BadCredentials as error:
            self._refuse_unknown(wanted.shape, error)
            raise

    def _refuse_unknown(self, shape: str, error: Exception) -> None:
        """A shape that the catalog lacks, and of which the cloud can't be asked, is most likely misspelt."""
        if shape in SHAPES:
            return
        near = nearest_shapes(shape)
        raise UnknownShape(
            f"No shape '{shape}' is in the catalog, and {self.name} can't be asked for it: {error}"
            + (f" The nearest are {', '.join(near)}." if near else "")
        ) from error

    def _wanted(self, spec: Spec, record: CloudCluster | None) -> CloudCluster:
        """The cluster as the spec asks for it; what it leaves open is as it was."""
        old = record or CloudCluster(
            name=self._folder.name,
            id=secrets.token_hex(8),
            owner=_owner(),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            target=Target(provider=self.name),
            shape="",
        )
        shape = spec.shape or old.shape
        if not shape:
            raise InvalidInput(
                f"Provider {self.name} needs to know the machines: give `--shape S`; `gpuctl shapes` lists them."
            )
        return replace(
            old,
            target=Target(
                provider=self.name,
                region=spec.region or old.target.region,
                profile=spec.profile or old.target.profile,
                compartment=spec.compartment or old.target.compartment,
            ),
            shape=shape,
            image=spec.image or old.image,
            disk_gb=spec.disk_gb or old.disk_gb,
            spot=spec.spot or old.spot,
            ssh_cidr=spec.ssh_cidr or old.ssh_cidr,
            ssh_port=spec.ssh_port or old.ssh_port,
            subnet_id=spec.subnet_id or old.subnet_id,
            public_ip=spec.public_ip and old.public_ip,
            bastion=spec.bastion or old.bastion,
            ttl_s=spec.ttl_s or old.ttl_s,
            expires_at=self._expires_at(spec, old),
        )

    def _expires_at(self, spec: Spec, old: CloudCluster) -> str | None:
        # The same command again doesn't give the machines more time.
        if spec.ttl_s is None or spec.ttl_s == old.ttl_s:
            return old.expires_at
        return expires_at(datetime.now(UTC), spec.ttl_s)

    def _refuse_changes(self, record: CloudCluster, wanted: CloudCluster) -> None:
        options = {
            "shape": "--shape",
            "image": "--image",
            "disk_gb": "--disk-gb",
            "spot": "--spot",
            "ssh_port": "network.ssh_port",
            "subnet_id": "--subnet-id",
            "public_ip": "--no-public-ip",
            "ttl_s": "--ttl",
        }
        changed = [
            option for name, option in options.items() if getattr(record, name) != getattr(wanted, name)
        ]
        changed += [
            f"--{name}"
            for name in ("region", "profile", "compartment")
            if getattr(record.target, name) != getattr(wanted.target, name)
        ]
        if changed:
            name = record.name
            raise RefusedPlan(
                f"The machines of cluster '{name}' were made with other values of {', '.join(changed)}, and "
                "`up` does not make them anew. Leave that out; or make a second cluster with `--cluster NAME`; "
                f"or remove this one with `gpuctl down --cluster {name}` and run `gpuctl up` again."
            )

    def _refuse_stopped(self, machines: Iterable[Instance]) -> None:
        stopped = [machine.id for machine in machines if machine.state in ("stopping", "stopped")]
        if stopped:
            raise RefusedPlan(
                f"These machines are stopped: {', '.join(stopped)}. Start them in the cloud's console and run "
                f"`gpuctl up` again, or remove the cluster with `gpuctl down --cluster {self._folder.name}`."
            )

    def _hourly_usd(self, cluster: CloudCluster, offer: Offer) -> float | None:
        """Price of one machine: refreshed prices win over those of this release; spot's are the cloud's word."""
        if cluster.spot:
            return offer.hourly_usd
        price = price_of(self._folder.home, cluster.shape, cluster.target.region)
        return price.usd_per_hour if price else None

    def _count(self, spec: Spec, have: int) -> int:
        count = spec.count if spec.count is not None else max(have, 1)
        if count < have:
            name = self._folder.name
            raise RefusedPlan(
                f"Cluster '{name}' has {have} machines, and `up` does not end any of them. To have {count}, "
                f"remove it with `gpuctl down --cluster {name}`, then run `gpuctl up` with `--count {count}`."
            )
        return count

    def _open_launches(self) -> tuple[Launch, ...]:
        return tuple(launch for launch in self._folder.launches() if not launch.settled)

    def _watch_s(self, cloud: Cloud, cluster: CloudCluster) -> float:
        """How long machines and parts may still come up that the cloud does not list yet."""
        try:
            launches = self._open_launches()
        except CorruptFile:
            return cloud.consistency_s
        ages = [youngest_intent_s(self._folder.cluster_folder.journal)]
        ages.append(youngest_intent_s(self._folder.network_journal(cluster)))
        if launches:
            seen = Counter(machine.tags.get(LAUNCH) for machine in cloud.instances(cluster.id))
            now = datetime.now(UTC)
            ages += [
                (now - datetime.fromisoformat(launch.began_at)).total_seconds()
                for launch in launches
                if seen[launch.id] < len(launch.ranks)
            ]
        youngest = min((age for age in ages if age is not None), default=cloud.consistency_s)
        return max(0.0, cloud.consistency_s - youngest)

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
            user=launch.user if launch else "ubuntu",
            private_ip=instance.private_ip or "",
            gpus=gpus,
            id=instance.id,
            shape=instance.shape,
            key_file=self._folder.cluster_folder.key_path,
            python=python,
            host_key=launch.host_key(instance.rank) if launch else None,
            jump=cluster.bastion,
        )


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:100]
