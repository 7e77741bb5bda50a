"""Finding every cluster of ours in an account by its tags, with no file of ours, and removing those chosen."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from provision import tags
from provision.clock import Clock, SystemClock
from provision.cloud import Cloud
from provision.provider import Leftover, Say
from provision.teardown import remove


@dataclass(frozen=True, kw_only=True)
class FoundCluster:
    """A cluster, or what is left of one, as its tags tell it."""

    name: str
    id: str
    owner: str
    provider: str
    region: str | None
    machines: tuple[str, ...]
    """Ids of what is not ended."""
    parts: tuple[str, ...]
    """Kinds and ids of what else there is."""
    since: str | None
    """When its oldest machine was launched, ISO 8601, UTC."""
    expires_at: str | None
    hourly_usd: float | None
    """List price of its machines together. None: not known."""

    def expired(self, now: datetime) -> bool:
        """Whether the time that it was given is over."""
        return self.expires_at is not None and datetime.fromisoformat(self.expires_at) <= now


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Everything of ours in one region of an account."""

    clusters: tuple[FoundCluster, ...]
    network: tuple[str, ...]
    """Kinds and ids of the shared network's parts."""


def survey(cloud: Cloud, price: Callable[[str], float | None]) -> Survey:
    """Look, and change nothing. `price` tells what a machine of a shape costs, USD an hour."""
    instances = [machine for machine in cloud.instances() if machine.state != "ended"]
    parts = cloud.parts()
    owned = [of for of in (*(i.tags for i in instances), *(p.tags for p in parts)) if not tags.is_shared(of)]
    ids = sorted({of.get(tags.CLUSTER_ID, "") for of in owned})
    clusters = []
    for cluster_id in ids:
        of = next(of for of in owned if of.get(tags.CLUSTER_ID, "") == cluster_id)
        machines = [machine for machine in instances if machine.tags.get(tags.CLUSTER_ID, "") == cluster_id]
        mine = [
            p for p in parts if p.tags.get(tags.CLUSTER_ID, "") == cluster_id and not tags.is_shared(p.tags)
        ]
        prices = [price(machine.shape) for machine in machines]
        clusters.append(
            FoundCluster(
                name=of[tags.CLUSTER],
                id=cluster_id,
                owner=of.get(tags.OWNER, ""),
                provider=cloud.name,
                region=cloud.target.region,
                machines=tuple(machine.id for machine in machines),
                parts=tuple(f"{part.kind} {part.id}" for part in mine),
                since=min((machine.launched_at for machine in machines), default=None),
                expires_at=of.get(tags.EXPIRES),
                hourly_usd=None if None in prices else round(sum(price or 0.0 for price in prices), 4),
            )
        )
    shared = tuple(f"{part.kind} {part.id}" for part in parts if tags.is_shared(part.tags))
    return Survey(clusters=tuple(clusters), network=shared)


def reap(
    cloud: Cloud, cluster_ids: Collection[str] | None, *, say: Say, clock: Clock | None = None
) -> tuple[Leftover, ...]:
    """Remove these clusters (None: all), and the shared network with the last of them."""
    return remove(cloud, cluster_ids, clock=clock or SystemClock(), say=say).leftovers
