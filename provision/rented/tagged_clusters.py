"""Finding every cluster of ours in an account by its tags, with no file of ours, and removing those chosen."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime

from provision.errors import CloudError
from provision.pricing.spending import cost_so_far
from provision.provider import Leftover
from provision.records import Instance, Resource, read_time
from provision.rented import tags
from provision.rented.interface import Cloud
from provision.rented.teardown import remove
from provision.waiting import Clock, Say, SystemClock

Price = Callable[[str], float | None]
"""What a machine of a shape costs, USD an hour. None: not known."""


@dataclass(frozen=True, kw_only=True)
class FoundCluster:
    """A cluster, or what is left of one, as its tags tell it."""

    name: str
    id: str
    owner: str
    provider: str
    region: str | None
    compartment: str | None = None
    """OCI: where it is."""
    machines: tuple[str, ...]
    """Ids of what is not ended."""
    resources: tuple[str, ...]
    """Kinds and ids of what else there is."""
    since: str | None
    """When its oldest machine was launched, ISO 8601, UTC."""
    expires_at: str | None
    """None: it has no time limit, or one that can't be read."""
    hourly_usd: float | None
    """List price of its machines together. None: not known, as that of spot machines."""
    launched: tuple[tuple[float | None, str], ...] = ()
    """Of each machine: price an hour, and since when."""

    def expired(self, now: datetime) -> bool:
        """Whether the time that it was given is over."""
        end = read_time(self.expires_at)
        return end is not None and end <= now

    def cost_usd(self, now: datetime) -> float | None:
        """What the machines that are there have cost, by list price. None: not known."""
        costs = [cost_so_far(each, [since], now) for each, since in self.launched]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None


@dataclass(frozen=True, kw_only=True)
class RegionContents:
    """Everything of ours in one region of an account."""

    clusters: tuple[FoundCluster, ...]
    network: tuple[str, ...]
    """Kinds and ids of the shared network's resources."""
    error: CloudError | None = None
    """Why only machines could be looked at."""


def list_clusters(cloud: Cloud, price: Price) -> RegionContents:
    """Look, and change nothing. Raises CloudError; not where machines of ours were seen before it."""

    def is_own(of: Mapping[str, str]) -> bool:
        return tags.is_of(of, cloud.name)

    instances = [i for i in cloud.instances() if i.state != "ended" and is_own(i.tags)]
    failed: CloudError | None = None
    resources: list[Resource] = []
    try:
        resources = [resource for resource in cloud.resources() if tags.is_ours(resource.tags)]
    except CloudError as error:
        if not instances:
            raise
        failed = error
    own = [resource for resource in resources if is_own(resource.tags)]
    owned = [*(machine.tags for machine in instances), *(resource.tags for resource in own)]
    ids = sorted({of[tags.CLUSTER_ID] for of in owned})
    clusters = [
        _cluster(
            cloud,
            [machine for machine in instances if machine.tags[tags.CLUSTER_ID] == cluster_id],
            [resource for resource in own if resource.tags[tags.CLUSTER_ID] == cluster_id],
            price,
        )
        for cluster_id in ids
    ]
    shared = tuple(
        f"{resource.kind} {resource.id}" for resource in resources if tags.is_shared(resource.tags)
    )
    return RegionContents(clusters=tuple(clusters), network=shared, error=failed)


def _cluster(
    cloud: Cloud, machines: Sequence[Instance], resources: Sequence[Resource], price: Price
) -> FoundCluster:
    every = [*(machine.tags for machine in machines), *(resource.tags for resource in resources)]
    # What is paid for a spot machine changes by the hour.
    prices = [None if machine.spot else price(machine.shape) for machine in machines]
    return FoundCluster(
        name=every[0][tags.CLUSTER],
        id=every[0][tags.CLUSTER_ID],
        owner=every[0].get(tags.OWNER, ""),
        provider=cloud.name,
        region=cloud.target.region,
        compartment=cloud.target.compartment,
        machines=tuple(machine.id for machine in machines),
        resources=tuple(f"{resource.kind} {resource.id}" for resource in resources),
        since=min((machine.launched_at for machine in machines), default=None),
        expires_at=_expires_at(every),
        hourly_usd=None if None in prices else round(sum(each or 0.0 for each in prices), 4),
        launched=tuple((each, machine.launched_at) for each, machine in zip(prices, machines, strict=True)),
    )


def _expires_at(every: Sequence[Mapping[str, str]]) -> str | None:
    """The latest end that the tags tell; None where one of them can't be read: somebody meant something."""
    told = {of[tags.EXPIRES] for of in every if tags.EXPIRES in of}
    ends = {text: end for text in told if (end := read_time(text)) is not None}
    return max(ends, key=lambda text: ends[text]) if ends and len(ends) == len(told) else None


def reap(
    cloud: Cloud,
    cluster_ids: Collection[str] | None,
    *,
    say: Say,
    clock: Clock | None = None,
    network: Callable[[], AbstractContextManager[None]] = nullcontext,
    network_gone: Callable[[], None] = lambda: None,
) -> tuple[Leftover, ...]:
    """Remove these clusters (None: all), and the shared network with the last of them.

    `network` keeps our other commands off the network meanwhile, and while `network_gone` is told of its end.
    """
    removed = remove(
        cloud,
        cluster_ids,
        clock=clock or SystemClock(),
        say=say,
        network=network,
        network_gone=network_gone,
    )
    return removed.leftovers
