"""What a rented cluster keeps on this computer beside its inventory, in `clusters/<name>/`.

    cloud.json            the cluster as it was asked for
    launches/<token>.json each launch: its requests until they are settled, and its machines' public host keys

Both are on the disk before the call that they are about.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from inventories import codec
from inventories.disk import files, lock
from inventories.disk.store import ClusterFolder, Journal
from inventories.errors import CorruptFile
from provision.clouds import base_of
from provision.records import CloudCluster, Target, Zone

NETWORK_LOCK_WAIT_S = 2700.0
"""More than the deadlines of a holder together: `up` may wait for two NAT gateways to come up, and for one of them
and its address to go, each 10 minutes at most."""

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
    """Who logs in there."""
    host_keys: tuple[str, ...]
    """Public host key of each machine, in the order of `ranks`."""
    requests: tuple[dict[str, Any], ...]
    """What is sent, and sent again as it is after a crash. Empty once that can't happen any more: it holds
    the host's private keys."""
    began_at: str
    """When it was first sent, ISO 8601, UTC: its token lives from then on."""
    sent_at: str
    """When it was last sent: what came of it may still be missing in the cloud's lists."""
    state: Literal["open", "undoing", "running", "undone"]
    """`open`: sent, or about to be; its machines may come up at any moment. `undoing`: to be removed whole."""

    @property
    def settled(self) -> bool:
        """Whether nothing of it can come up any more."""
        return self.state in ("running", "undone")

    def host_key(self, rank: int) -> str | None:
        """Public host key of the machine of that rank."""
        return dict(zip(self.ranks, self.host_keys, strict=True)).get(rank)

    def sent(self, now: datetime) -> "Launch":
        """The launch, sent at that time."""
        return replace(self, sent_at=now.isoformat(timespec="milliseconds"))

    def ended(self, state: Literal["running", "undone"]) -> "Launch":
        """The launch, settled: nothing is sent again, and its secrets are forgotten."""
        return replace(self, state=state, requests=())


class CloudState:
    """The files of one rented cluster."""

    def __init__(self, folder: ClusterFolder) -> None:
        self.cluster_folder = folder
        self._record = folder.path / "cloud.json"
        self._launches = folder.path / "launches"

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.cluster_folder.name

    @property
    def home(self) -> Path:
        """`$GPUCTL_HOME`."""
        return self.cluster_folder.path.parent.parent

    @property
    def networks(self) -> Path:
        """Where the journals and locks of the shared networks are."""
        return self.home / "networks"

    def load(self) -> CloudCluster | None:
        """The cluster; None where nothing was asked of a cloud yet.

        Raises CorruptFile or NewerFormat, also where the record is gone and other files tell of machines.
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
        """All launches, oldest first. Raises CorruptFile or NewerFormat."""
        return tuple(sorted(self._read_launches(), key=lambda launch: (launch.began_at, launch.id)))

    def open_launches(self) -> tuple[Launch, ...]:
        """Those that are not settled, oldest first."""
        return tuple(launch for launch in self.launches() if not launch.settled)

    def save_launch(self, launch: Launch) -> None:
        """Replace the launch's record, atomically."""
        files.private_dir(self._launches)
        files.write_atomic(self._launches / f"{launch.id}.json", codec.dump(launch))

    def network_journal(self, target: Target) -> Journal:
        """What was made of the network that the clusters of this region share."""
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

    def _read_launches(self) -> Iterator[Launch]:
        for path in sorted(self._launches.glob("*.json")):
            data = files.read_bytes(path)
            if data is not None:
                yield codec.load(Launch, data, str(path), rebuild=REBUILD)


def network_name(target: Target) -> str:
    """The name on this computer of the network that the clusters of an account's region share."""
    account = hashlib.sha256(f"{target.account} {target.compartment}".encode()).hexdigest()[:8]
    return f"{base_of(target.provider)}-{target.region}-{account}"
