"""The tags that everything of ours carries from its create call: they are the truth about what is ours.

OCI's freeform tags and AWS's tags alike. A resource without our tags is never touched, whatever its name; the
tag `gpuctl` alone may be somebody else's word for something.
"""

from collections.abc import Iterable, Mapping

from provision.clouds import KUBERNETES

CLUSTER = "gpuctl"
"""The cluster's name; NETWORK on what all clusters of a region share."""
NETWORK = "@network"
"""No cluster can be called so."""
CLUSTER_ID = "gpuctl-cluster-id"
"""Tells clusters of one name apart: another person's, or one whose files were lost."""
OWNER = "gpuctl-owner"
"""Who made it, user@host: for people."""
LAUNCH = "gpuctl-launch"
"""The launch that a machine came from."""
RANKS = "gpuctl-ranks"
"""Node ranks of the machines of one request, as `ranks_text` writes them."""
EXPIRES = "gpuctl-expires"
"""When the cluster's time is over, ISO 8601, UTC."""
IMAGE = "gpuctl-image"
"""The image as it was asked for."""
TIER = "gpuctl-tier"
"""PRIVATE on the parts of the shared network that only private clusters use, and on what such a cluster has."""
PRIVATE = "private"
PROVIDER = "gpuctl-provider"
"""The provider, on what is none of the cloud's virtual machines alone: `eks` shares AWS's account and network."""


POOL = "gpuctl-pool"
"""MEMBER on machines that joined an instance pool of OCI, or were about to, and on those that a pool makes."""
MEMBER = "member"


def of_cluster(
    name: str, cluster_id: str, owner: str, expires_at: str | None = None, *, private: bool = False
) -> dict[str, str]:
    """Tags of what belongs to one cluster; `private`: it needs the network's private parts."""
    expires = {EXPIRES: expires_at} if expires_at else {}
    return {CLUSTER: name, CLUSTER_ID: cluster_id, OWNER: owner} | expires | _tier(private)


def of_network(owner: str, *, private: bool = False) -> dict[str, str]:
    """Tags of what the clusters of a region share; `private`: the private ones among them."""
    return {CLUSTER: NETWORK, OWNER: owner} | _tier(private)


def _tier(private: bool) -> dict[str, str]:
    return {TIER: PRIVATE} if private else {}


def is_private(tags: Mapping[str, str]) -> bool:
    """Whether it is a private part of the network, or of a cluster that needs those."""
    return tags.get(TIER) == PRIVATE


def is_ours(tags: Mapping[str, str]) -> bool:
    """Whether gpuctl made it: for a cluster, whose id it carries, or for the network that clusters share."""
    return is_shared(tags) or is_clusters(tags)


def is_clusters(tags: Mapping[str, str]) -> bool:
    """Whether it is some cluster's of ours."""
    return bool(tags.get(CLUSTER) and tags.get(CLUSTER_ID)) and not is_shared(tags)


def is_of(tags: Mapping[str, str], provider: str) -> bool:
    """Whether it is some cluster's of that provider: what belongs to a service of Kubernetes says so."""
    return is_clusters(tags) and tags.get(PROVIDER) == (provider if provider in KUBERNETES else None)


def is_shared(tags: Mapping[str, str]) -> bool:
    """Whether it belongs to the network that clusters share."""
    return tags.get(CLUSTER) == NETWORK


def ranks_text(ranks: Iterable[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3, 7: short enough for a tag, in order."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_ranks(text: str) -> tuple[int, ...]:
    """The ranks of `ranks_text`. Raises ValueError for anything else."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)


def rank_at(tags: Mapping[str, str], index: int) -> int | None:
    """The rank of the machine that was the `index`-th of its request; None where the tags don't tell."""
    try:
        return read_ranks(tags.get(RANKS, ""))[index]
    except (ValueError, IndexError):
        return None
