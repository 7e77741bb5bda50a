"""What a rented cluster keeps on this computer beside its inventory, in `clusters/<name>/`.

    cloud.json            the cluster as it was asked for
    launches/<token>.json each launch: its requests until they are settled, and its machines' public host keys

Both are on the disk before the call that they are about.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from inventories import codec, files
from inventories.store import ClusterFolder, Journal
from provision.cloud import CloudCluster, Place

REBUILD = (
    "`gpuctl reap` finds what the cluster left in the cloud by its tags and removes it; then remove the "
    "cluster's folder."
)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Machines that are launched together, in one place."""

    id: str
    """Random: the token of its requests, and the value of the tag `gpuctl-launch`."""
    place: Place
    ranks: tuple[int, ...]
    user: str
    """Who logs in there."""
    host_keys: tuple[str, ...]
    """Public host key of each machine, in the order of `ranks`."""
    requests: tuple[dict[str, Any], ...]
    """What is sent, and sent again as it is after a crash. Empty once that can't happen any more: it holds
    the host's private keys."""
    began_at: str
    """ISO 8601, UTC."""
    state: Literal["open", "undoing", "running", "undone"]
    """`open`: sent, or about to be; its machines may come up at any moment. `undoing`: to be removed whole."""

    @property
    def settled(self) -> bool:
        """Whether nothing of it can come up any more."""
        return self.state in ("running", "undone")

    def host_key(self, rank: int) -> str | None:
        """Public host key of the machine of that rank."""
        return dict(zip(self.ranks, self.host_keys, strict=True)).get(rank)

    def ended(self, state: Literal["running", "undone"]) -> "Launch":
        """The launch, settled: nothing is sent again, and its secrets are forgotten."""
        return replace(self, state=state, requests=())


class CloudFolder:
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
        """The cluster; None where nothing was asked of a cloud yet. Raises CorruptFile or NewerFormat."""
        data = files.read_bytes(self._record)
        return None if data is None else codec.load(CloudCluster, data, str(self._record), rebuild=REBUILD)

    def save(self, cluster: CloudCluster) -> None:
        """Replace the record, atomically. Makes the folder."""
        self.cluster_folder.make()
        files.write_atomic(self._record, codec.dump(cluster))

    def launches(self) -> tuple[Launch, ...]:
        """All launches, oldest first. Raises CorruptFile or NewerFormat."""
        return tuple(sorted(self._read_launches(), key=lambda launch: (launch.began_at, launch.id)))

    def save_launch(self, launch: Launch) -> None:
        """Replace the launch's record, atomically."""
        files.private_dir(self._launches)
        files.write_atomic(self._launches / f"{launch.id}.json", codec.dump(launch))

    def network_journal(self, cluster: CloudCluster) -> Journal:
        """What was made of the network that the clusters of this region share."""
        return Journal(self.networks / f"{network_name(cluster)}.jsonl")

    def _read_launches(self) -> Iterator[Launch]:
        for path in sorted(self._launches.glob("*.json")):
            data = files.read_bytes(path)
            if data is not None:
                yield codec.load(Launch, data, str(path), rebuild=REBUILD)


def network_name(cluster: CloudCluster) -> str:
    """The shared network's name on this computer."""
    return f"{cluster.target.provider}-{cluster.target.region}"
