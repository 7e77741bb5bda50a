"""The clusters of ours in an account by their tags, without files of ours, and their removal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from provision.clouds import describe
from provision.errors import CloudError
from provision.pricing.spending import cost_so_far
from provision.records import Instance, Resource, read_time
from provision.rented import tags
from provision.rented.interface import Cloud

Price = Callable[[str], float | None]
"""Returns the price of a machine of a shape, USD an hour. `None`: not known."""


@dataclass(frozen=True, kw_only=True)
class FoundCluster:
    """A cluster, or its remains, by its tags."""

    name: str
    id: str
    owner: str
    provider: str
    region: str | None
    compartment: str | None = None
    """OCI: its compartment."""
    machines: tuple[str, ...]
    """Ids of the machines that have not ended."""
    resources: tuple[str, ...]
    """Kinds and ids of its other resources."""
    since: str | None
    """Launch of its oldest machine, ISO 8601, UTC."""
    expires_at: str | None
    """`None`: no time limit, or an unreadable one."""
    off: tuple[str, ...] = ()
    """Ids of machines that are stopped, or being ended."""
    idle: bool = False
    """Whether it ends after a time without use, by the tags of a machine."""
    hourly_usd: float | None
    """List price of its machines together. `None`: not known, as that of spot machines."""
    most_hourly_usd: float | None = None
    """Highest price of its machines, with their addresses, and of its other resources. `None`: not known."""
    shapes: tuple[str, ...] = ()
    """Shapes of its machines."""
    launched: tuple[tuple[float | None, str], ...] = ()
    """Price an hour and time of the launch of each machine."""

    @property
    def ends_at(self) -> str | None:
        """Return the time at which the machines and their bill end for sure. `None`: no such time."""
        return self.expires_at if describe(self.provider).power_off_ends_bill else None

    def expired(self, now: datetime) -> bool:
        """Return whether the cluster's time is over."""
        end = read_time(self.expires_at)
        return end is not None and end <= now

    def cost_usd(self, now: datetime) -> float | None:
        """Return the cost of the existing machines until now, by list price. `None`: not known."""
        costs = [cost_so_far(each, [since], now) for each, since in self.launched]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None


@dataclass(frozen=True, kw_only=True)
class RegionContents:
    """Our resources in one region of an account."""

    clusters: tuple[FoundCluster, ...]
    network: tuple[str, ...]
    """Kinds and ids of the shared network's resources."""
    network_hourly_usd: float = 0.0
    """List price of the network."""
    error: CloudError | None = None
    """Reason why only machines could be listed. `None`: all resources are."""


def list_clusters(cloud: Cloud, price: Price) -> RegionContents:
    """Return our clusters. Read-only. Raises CloudError, unless machines of ours were listed before it."""
    instances = cloud.instances()
    try:
        return _contents(cloud, price, instances, cloud.resources())
    except CloudError as error:
        listed = _contents(cloud, price, instances, ())
        if not listed.clusters:
            raise
        return replace(listed, error=error)


def list_billed(cloud: Cloud, price: Price) -> RegionContents:
    """Return our clusters with their priced resources alone, by fewer requests. Read-only. Raises CloudError."""
    return _contents(cloud, price, *cloud.billed())


def _contents(
    cloud: Cloud, price: Price, instances: Sequence[Instance], resources: Sequence[Resource]
) -> RegionContents:
    """Return the clusters of the cloud's provider among these machines and resources."""

    def is_own(of: Mapping[str, str]) -> bool:
        return tags.is_of(of, cloud.name)

    instances = [i for i in instances if i.state != "ended" and is_own(i.tags)]
    resources = [resource for resource in resources if tags.is_ours(resource.tags)]
    of_clusters = [resource for resource in resources if is_own(resource.tags)]
    owned = [*(machine.tags for machine in instances), *(resource.tags for resource in of_clusters)]
    ids = sorted({of[tags.CLUSTER_ID] for of in owned})
    clusters = [
        _cluster(
            cloud,
            [machine for machine in instances if machine.tags[tags.CLUSTER_ID] == cluster_id],
            [resource for resource in of_clusters if resource.tags[tags.CLUSTER_ID] == cluster_id],
            price,
        )
        for cluster_id in ids
    ]
    shared = [resource for resource in resources if tags.is_shared(resource.tags)]
    return RegionContents(
        clusters=tuple(clusters),
        network=tuple(f"{resource.kind} {resource.id}" for resource in shared),
        network_hourly_usd=_fixed_hourly_usd(cloud, shared),
    )


def _cluster(
    cloud: Cloud, machines: Sequence[Instance], resources: Sequence[Resource], price: Price
) -> FoundCluster:
    every = [*(machine.tags for machine in machines), *(resource.tags for resource in resources)]
    about = describe(cloud.name)
    on_demand = [price(machine.shape) or about.fixed_hourly_usd.get(machine.shape) for machine in machines]
    # The price of a spot machine changes by the hour.
    prices = [None if m.spot else each for m, each in zip(machines, on_demand, strict=True)]
    fixed_usd = _fixed_hourly_usd(cloud, resources) + len(machines) * about.address_hourly_usd
    texts = {of[tags.EXPIRES] for of in every if tags.EXPIRES in of}
    ends = {text: end for text in texts if (end := read_time(text)) is not None}
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
        expires_at=(max(ends, key=lambda text: ends[text]) if ends and len(ends) == len(texts) else None),
        off=tuple(machine.id for machine in machines if machine.state in ("stopped", "ending")),
        idle=any(tags.IDLE in machine.tags for machine in machines),
        hourly_usd=_sum(prices),
        most_hourly_usd=_sum([*on_demand, fixed_usd]),
        shapes=tuple(dict.fromkeys(machine.shape for machine in machines)),
        launched=tuple((each, machine.launched_at) for each, machine in zip(prices, machines, strict=True)),
    )


def _sum(prices: Sequence[float | None]) -> float | None:
    return None if None in prices else round(sum(each or 0.0 for each in prices), 4)


def _fixed_hourly_usd(cloud: Cloud, resources: Sequence[Resource]) -> float:
    fixed = describe(cloud.name).fixed_hourly_usd
    return sum(fixed.get(resource.kind, 0.0) for resource in resources)
