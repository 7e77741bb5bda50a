"""The tags of our resources, set by their create call: they decide which resources are ours.

OCI's freeform tags and AWS's tags alike. A resource without our tags is never changed, whatever its name; the tag
`gpuctl` alone may be another program's.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from provision.clouds import KUBERNETES
from provision.records import Instance

CLUSTER = "gpuctl"
"""The cluster's name; NETWORK on the parts that all clusters of a region share."""
NETWORK = "@network"
"""No cluster can have this name."""
CLUSTER_ID = "gpuctl-cluster-id"
"""Distinguishes clusters of one name: another user's, or one whose files were lost."""
OWNER = "gpuctl-owner"
"""The maker, user@host, for people."""
LAUNCH = "gpuctl-launch"
"""The launch of a machine."""
RANKS = "gpuctl-ranks"
"""Node ranks of the machines of one request, as `ranks_text` writes them."""
EXPIRES = "gpuctl-expires"
"""End of the cluster's time, ISO 8601, UTC."""
IDLE = "gpuctl-idle"
"""Time without use after which the cluster ends, in seconds."""
IMAGE = "gpuctl-image"
"""The requested image."""
TIER = "gpuctl-tier"
"""PRIVATE on the parts of the shared network for private clusters, and on resources of such a cluster."""
PRIVATE = "private"
PROVIDER = "gpuctl-provider"
"""The provider, on resources of a Kubernetes service: `eks` shares AWS's account and network."""


POOL = "gpuctl-pool"
"""MEMBER on machines that joined an instance pool of OCI, or were about to, and on those that a pool makes."""
MEMBER = "member"


def of_cluster(
    name: str,
    cluster_id: str,
    owner: str,
    expires_at: str | None = None,
    *,
    idle_s: float | None = None,
    private: bool = False,
) -> dict[str, str]:
    """Return the tags of a cluster's resources. `private`: it needs the network's private parts."""
    ends = ({EXPIRES: expires_at} if expires_at else {}) | ({IDLE: f"{idle_s:g}"} if idle_s else {})
    return {CLUSTER: name, CLUSTER_ID: cluster_id, OWNER: owner} | ends | _tier(private)


def of_network(owner: str, *, private: bool = False) -> dict[str, str]:
    """Return the tags of the shared network. `private`: of its private parts."""
    return {CLUSTER: NETWORK, OWNER: owner} | _tier(private)


def _tier(private: bool) -> dict[str, str]:
    return {TIER: PRIVATE} if private else {}


def is_private(tags: Mapping[str, str]) -> bool:
    """Return whether it is a private part of the network, or of a cluster that needs one."""
    return tags.get(TIER) == PRIVATE


def is_ours(tags: Mapping[str, str]) -> bool:
    """Return whether gpuctl made it: for a cluster, whose id it has, or for the shared network."""
    return is_shared(tags) or is_clusters(tags)


def is_clusters(tags: Mapping[str, str]) -> bool:
    """Return whether it belongs to a cluster of ours."""
    return bool(tags.get(CLUSTER) and tags.get(CLUSTER_ID)) and not is_shared(tags)


def is_of(tags: Mapping[str, str], provider: str) -> bool:
    """Return whether it belongs to a cluster of that provider."""
    return is_clusters(tags) and tags.get(PROVIDER) == (provider if provider in KUBERNETES else None)


def is_shared(tags: Mapping[str, str]) -> bool:
    """Return whether the resource belongs to the network that clusters share."""
    return tags.get(CLUSTER) == NETWORK


def without_managed_nodes(
    machines: Sequence[Instance], provider: str, managed: Callable[[], Collection[str | None]]
) -> tuple[Instance, ...]:
    """Return the machines without the nodes of a Kubernetes service that a live cluster manages.

    `managed` returns the ids of the live clusters; it is called only if there are nodes.
    """
    if not any(is_of(machine.tags, provider) for machine in machines):
        return tuple(machines)
    live = managed()
    return tuple(
        machine
        for machine in machines
        if not is_of(machine.tags, provider) or machine.tags.get(CLUSTER_ID) not in live
    )


def ranks_text(ranks: Iterable[int]) -> str:
    """Return `0-3,7` for 0, 1, 2, 3, 7: short enough for a tag, in order."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a text of `ranks_text`. Raises ValueError for another text."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)


def rank_at(tags: Mapping[str, str], index: int) -> int | None:
    """Return the rank of the machine that was the `index`-th of its request. `None`: not in the tags."""
    try:
        return read_ranks(tags.get(RANKS, ""))[index]
    except (ValueError, IndexError):
        return None
