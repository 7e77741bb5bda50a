"""The files of a rented cluster on this computer, in `clusters/<name>/` with its inventory.

    cloud.json            the request for the cluster
    launches/<token>.json each launch: its requests until they are settled, and its machines' public host keys

Both are on the disk before the call that they are about.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from inventories import codec
from inventories.disk import files, lock
from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import CorruptFile
from inventories.machine import Machine, MachineState
from provision.clouds import base_of, describe
from provision.records import CloudCluster, Instance, InstanceState, Target, Zone
from provision.rented.tags import LAUNCH

NETWORK_LOCK_WAIT_S = 2700.0
"""More than the deadlines of a holder together: `up` may wait for two NAT gateways to come up, and for one of them
and its address to go, each 10 minutes at most."""

STATES: dict[InstanceState, MachineState] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "ending": "gone",
    "ended": "gone",
}

REBUILD = (
    "`gpuctl reap` finds what the cluster left in the cloud by its tags and removes it; then remove the "
    "cluster's folder."
)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Machines that are launched together, in one zone."""

    id: str
    """Random: the token of its requests, and the value of the tag `gpuctl-launch`."""
    zone: Zone = field(metadata=codec.key("place"))
    ranks: tuple[int, ...]
    user: str
    """The login on its machines."""
    host_keys: tuple[str, ...]
    """Public host key of each machine, in the order of `ranks`."""
    requests: tuple[dict[str, Any], ...]
    """The requests, sent unchanged again after a crash. Empty once the launch is final: they hold the hosts' private
    keys."""
    began_at: str
    """Time of the first sending, ISO 8601, UTC: the token's life begins then."""
    sent_at: str
    """Time of the last sending: the cloud's lists may still lack its machines."""
    state: Literal["open", "undoing", "running", "undone"]
    """`open`: sent, or about to be; its machines may come up at any moment. `undoing`: to be removed whole."""

    @property
    def settled(self) -> bool:
        """Return whether the launch is final: no machine can come up any more."""
        return self.state in ("running", "undone")

    def is_undone(self, count: int, consistency_s: float) -> bool:
        """Return whether an `up` to `count` machines undoes the whole launch, whose machines may still come up.

        `consistency_s`: of the cloud. Afterwards the cloud lists them all, and `up` ends the ranks beyond `count`.
        """
        age = datetime.now(UTC) - datetime.fromisoformat(self.sent_at)
        return self.state == "undoing" or (
            self.state == "open" and max(self.ranks) >= count and age.total_seconds() < consistency_s
        )

    def host_key(self, rank: int) -> str | None:
        """Return the public host key of the machine of that rank."""
        return dict(zip(self.ranks, self.host_keys, strict=True)).get(rank)

    def sent(self, now: datetime) -> "Launch":
        """Return the launch as sent at that time."""
        return replace(self, sent_at=now.isoformat(timespec="milliseconds"))

    def ended(self, state: Literal["running", "undone"]) -> "Launch":
        """Return the launch as final: without its requests, which have secrets."""
        return replace(self, state=state, requests=())


class CloudState:
    """The files of one rented cluster."""

    def __init__(self, folder: ClusterFolder) -> None:
        self.cluster_folder = folder
        self._record = folder.path / "cloud.json"
        self._launches = folder.path / "launches"

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.cluster_folder.name

    @property
    def home(self) -> Path:
        """`$GPUCTL_HOME`."""
        return self.cluster_folder.path.parent.parent

    @property
    def networks(self) -> Path:
        """Folder of the shared networks' journals and locks."""
        return self.home / "networks"

    def load(self) -> CloudCluster | None:
        """Return the cluster. `None`: no request was sent to a cloud yet.

        Raises CorruptFile or NewerFormat, also if the record is missing and other files show that machines exist.
        """
        data = files.read_bytes(self._record)
        if data is not None:
            return codec.load(CloudCluster, data, str(self._record), rebuild=REBUILD)
        if self.cluster_folder.exists() or any(self._launches.glob("*.json")):
            raise CorruptFile(
                f"'{self._record}' is missing, so it is not known where the machines of cluster '{self.name}' "
                f"are. {REBUILD}"
            )
        return None

    def save(self, cluster: CloudCluster) -> None:
        """Replace the record, atomically. Makes the folder."""
        self.cluster_folder.make()
        files.write_atomic(self._record, codec.dump(cluster))

    def launches(self) -> tuple[Launch, ...]:
        """Return all launches, oldest first. Raises CorruptFile or NewerFormat."""
        texts = [(path, files.read_bytes(path)) for path in sorted(self._launches.glob("*.json"))]
        launches = [
            codec.load(Launch, data, str(path), rebuild=REBUILD) for path, data in texts if data is not None
        ]
        return tuple(sorted(launches, key=lambda launch: (launch.began_at, launch.id)))

    def open_launches(self) -> tuple[Launch, ...]:
        """Return the launches that are not final, oldest first."""
        return tuple(launch for launch in self.launches() if not launch.settled)

    def save_launch(self, launch: Launch) -> None:
        """Replace the launch's record, atomically."""
        files.private_dir(self._launches)
        files.write_atomic(self._launches / f"{launch.id}.json", codec.dump(launch))

    def network_journal(self, target: Target) -> Journal:
        """Return the journal of the network that the clusters of this region share."""
        return Journal(self.networks / f"{network_name(target)}.jsonl")

    def network_lock(
        self, target: Target, command: str, on_wait: Callable[[str], None]
    ) -> AbstractContextManager[None]:
        """Keep our other commands off the shared network while the body runs."""
        name = network_name(target)
        return lock.hold(
            self.networks / f"{name}.lock",
            subject=f"the network of {target.provider} {target.region}",
            command=command,
            wait_s=NETWORK_LOCK_WAIT_S,
            on_wait=on_wait,
        )


def network_name(target: Target) -> str:
    """Return this computer's name for the network that the clusters of an account's region share."""
    account = hashlib.sha256(f"{target.account} {target.compartment}".encode()).hexdigest()[:8]
    return f"{base_of(target.provider)}-{target.region}-{account}"


def machine_of(
    instance: Instance, files: CloudState, cluster: CloudCluster, *, gpus: int | None, python: str | None
) -> Machine:
    """Return an instance as a machine of the inventory, with its keys from the cluster's files."""
    assert instance.rank is not None
    token = instance.tags.get(LAUNCH)
    launch = next((launch for launch in files.launches() if launch.id == token), None)
    return Machine(
        name=f"{cluster.name}-{instance.rank}",
        rank=instance.rank,
        state=STATES[instance.state],
        host=(instance.private_ip if cluster.bastion else instance.public_ip) or instance.private_ip or "",
        port=cluster.ssh_port,
        user=launch.user if launch else describe(cluster.target.provider).default_user,
        private_ip=instance.private_ip or "",
        gpus=gpus,
        id=instance.id,
        shape=instance.shape,
        key_file=files.cluster_folder.key_path,
        python=python or cluster.python,
        host_key=launch.host_key(instance.rank) if launch else None,
        bastion=cluster.bastion,
        launched_at=instance.launched_at,
    )
