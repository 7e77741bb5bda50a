"""Everything of gpuctl that is billed in the cloud accounts, found by its tags in every region."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuctl.app import App
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from provision.clouds import KUBERNETES, base_of
from provision.pricing import prices
from provision.pricing.prices import Prices
from provision.records import CloudCluster, Target
from provision.rented.scan import Failed, Scanned, Scope, scan_all
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import FoundCluster, Price


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """The contents of all accounts."""

    regions: tuple[Scanned, ...]
    clusters: tuple[FoundCluster, ...]
    problems: tuple[Failed, ...]
    """Places that did not answer, and may have more."""
    passed_over: tuple[Failed, ...] = ()
    """Places without a right to list: the user could not make machines there now."""

    @property
    def answered(self) -> set[tuple[str, str | None, str | None]]:
        """Return provider, region and account of the places that were listed in full."""
        listed = {place_of(region.cloud.target) for region in self.regions}
        return listed - {place_of(failure.target) for failure in self.passed_over}

    def knows(self, cluster: CloudCluster) -> bool:
        """Return whether the cluster, if it exists, is among the clusters."""
        listed = {_place(region.cloud.target) for region in self.regions}
        return place_of(cluster.target) in self.answered or _place(cluster.target) in listed


def place_of(target: Target) -> tuple[str, str | None, str | None]:
    """Return the provider, the region and the account of a target."""
    return target.provider, target.region, target.account


def scan_accounts(app: App, *more: Target) -> Accounts:
    """Scan every region of each cloud's default account, and of the accounts of clusters here.

    `more`: the accounts of further profiles.
    """
    records = [readable_record(folder) for folder in app.store.clusters()]
    targets = (*(record.target for record in records if record is not None), *more)
    profiles = {(base_of(target.provider), target.profile) for target in targets if target.profile}
    results = [scan_all(Scope(all_regions=True, billed=True), prices_at(app))]
    for cloud, profile in sorted(profiles, key=str):
        services = tuple(name for name in KUBERNETES if base_of(name) == cloud)
        scope = Scope(providers=(cloud, *services), profile=profile, all_regions=True, billed=True)
        results.append(scan_all(scope, prices_at(app)))
    # Two profiles of one account see the same places.
    regions = {_place(region.cloud.target): region for result in results for region in result.scanned}
    failed = [failure for result in results for failure in result.passed_over]
    clusters = {cluster.id: cluster for region in regions.values() for cluster in region.contents.clusters}
    return Accounts(
        regions=tuple(regions.values()),
        clusters=tuple(clusters.values()),
        problems=tuple(failure for result in results for failure in result.problems),
        passed_over=tuple(failure for failure in failed if _place(failure.target) not in regions),
    )


def _place(target: Target) -> Target:
    return replace(target, profile=None)


def readable_record(folder: ClusterFolder) -> CloudCluster | None:
    """Return the record of a rented cluster. `None`: it is not rented, or its record can't be read."""
    try:
        return CloudState(folder).load()
    except InventoryError:
        return None


def prices_at(app: App) -> Callable[[Target], Price]:
    """Return a function that returns the prices of machines at a target."""
    try:
        known = prices.load(app.store.home)
    except InventoryError as error:
        # Running machines matter more than their price.
        app.output.error(f"{error} Until then the prices are this release's.")
        known = Prices()

    def at(target: Target) -> Price:
        def price(shape: str) -> float | None:
            known_price = known.of(shape, target.region)
            return known_price.usd_per_hour if known_price else None

        return price

    return at
