"""The places that `reap` scans: accounts, regions, compartments; and the failures.

A cloud that is not set up on this computer is passed over. All other failures are reported, as an unscanned place may
have machines. Read-only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inventories.errors import InvalidInput
from inventories.threads import run_all, values
from provision.clouds import CLOUDS, KUBERNETES, base_of, cloud_of, describe, installed
from provision.errors import BadCredentials, CloudError, Denied, Gone, NoAnswer
from provision.records import Target
from provision.rented.interface import Cloud, configured, connect
from provision.rented.tagged_clusters import Price, RegionContents, list_billed, list_clusters

MAX_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The places to scan. Empty: every cloud that is set up here, in its configured region."""

    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    more_regions: tuple[str, ...] = ()
    """Regions to scan with the configured one, each of the cloud that has it."""
    all_regions: bool = False
    billed: bool = False
    """Only resources with a price, by fewer requests."""
    profile: str | None = None
    compartment: str | None = None
    """`None`: every accessible compartment."""


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """A scanned place, with its contents."""

    cloud: Cloud
    contents: RegionContents

    def __str__(self) -> str:
        return name_of(self.cloud.target)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A place that could not be scanned."""

    target: Target
    error: CloudError | InvalidInput
    passed_over: bool = False
    """True: the user did not name it, and no machine of ours is expected there."""

    def __str__(self) -> str:
        return f"{name_of(self.target)}: {self.error}"


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """The results of all places."""

    scanned: tuple[Scanned, ...]
    failed: tuple[Failed, ...]

    @property
    def problems(self) -> tuple[Failed, ...]:
        """The failures that may hide machines of ours."""
        return tuple(failure for failure in self.failed if not failure.passed_over)

    @property
    def passed_over(self) -> tuple[Failed, ...]:
        """The other failures."""
        return tuple(failure for failure in self.failed if failure.passed_over)


def name_of(target: Target) -> str:
    """Return `aws us-east-1`, with the compartment if it is not the whole account."""
    compartment = None if target.compartment == target.account else target.compartment
    return " ".join(part for part in (target.provider, target.region, compartment) if part)


def scan(scope: Scope, price: Callable[[Target], Price]) -> ScanResult:
    """Scan all places. `price` returns the prices of machines there.

    Raises the first failure if no place could be scanned.
    """
    result = scan_all(scope, price)
    if not result.scanned:
        # The first error, whose message has the others'.
        failed = result.problems or result.failed
        sentences = list(dict.fromkeys(str(failure) for failure in failed))
        more = len(sentences) - MAX_NAMED
        listed = sentences[:MAX_NAMED] + [f"So it is at {more} other places."] * (more > 0)
        raise type(failed[0].error)(" ".join(listed)) from failed[0].error
    return result


def scan_all(scope: Scope, price: Callable[[Target], Price]) -> ScanResult:
    """Scan all places, as `scan`. Without a scanned place, the result has all failures."""
    names = scope.providers or [name for name in CLOUDS if installed(name)]
    connected = values(run_all(lambda name: _connect_all(name, scope), names))
    if not scope.providers:
        # The services of Kubernetes in the same account and region.
        connected += [
            _connected(
                [replace(cloud.target, provider=name) for name in KUBERNETES if base_of(name) == cloud.name]
            )
            for clouds, _ in connected
            for cloud in clouds
        ]
    regions = {cloud.target.region for clouds, _ in connected for cloud in clouds}
    scanned: list[Scanned] = []
    failed: list[Failed] = []
    for clouds, not_connected in connected:
        listed, refused = _list_all(
            clouds, price, list_billed if scope.billed else list_clusters, listed=scope.compartment is None
        )
        scanned += listed
        # A region belongs to one cloud, and the others don't know it.
        failed += [
            replace(
                failure,
                passed_over=isinstance(failure.error, InvalidInput) and failure.target.region in regions,
            )
            for failure in not_connected
        ]
        failed += (
            refused
            if listed or all(failure.target.provider in KUBERNETES for failure in refused)
            else [replace(failure, passed_over=False) for failure in refused]
        )
    if not scope.providers:
        # Clouds that are not set up here are passed over.
        of_setup = [failure for failure in failed if isinstance(failure.error, BadCredentials | InvalidInput)]
        providers = {failure.target.provider for failure in of_setup}
        strangers = {name for name in providers if not configured(name)}
        failed = [
            replace(failure, passed_over=True)
            if failure in of_setup and failure.target.provider in strangers
            else failure
            for failure in failed
        ]
    return ScanResult(scanned=tuple(scanned), failed=tuple(failed))


def _connect_all(name: str, scope: Scope) -> tuple[list[Cloud], list[Failed]]:
    """Return the regions and compartments of one cloud."""
    compartment = None if "compartment" in describe(name).unsupported else scope.compartment
    target = Target(provider=name, profile=scope.profile, compartment=compartment)
    if scope.regions:
        regions, failed = _connected([replace(target, region=region) for region in scope.regions])
    else:
        further = [region for region in scope.more_regions if cloud_of(region) == name]
        regions, failed = _connected([target, *(replace(target, region=region) for region in further)])
        regions = list({cloud.target.region: cloud for cloud in regions}.values())
        if regions and further:  # then an account without a region of its own lacks nothing
            failed = [missed for missed in failed if missed.target.region is not None]
        if regions and scope.all_regions:
            regions, failed = _all_regions(regions[0])
    if not regions or scope.compartment is not None:
        return regions, failed
    first = regions[0]
    try:
        compartments = first.compartments()
    except (BadCredentials, NoAnswer) as error:
        return [], [*failed, Failed(target=first.target, error=error)]
    except CloudError as error:
        return regions, [*failed, Failed(target=first.target, error=error)]
    if not compartments:
        return regions, failed
    inner, more = _connected(
        [replace(c.target, compartment=failure) for c in regions for failure in compartments]
    )
    return inner, failed + more


def _all_regions(first: Cloud) -> tuple[list[Cloud], list[Failed]]:
    try:
        regions = first.regions()
    except BadCredentials as error:
        return [], [Failed(target=first.target, error=error)]
    except CloudError as error:
        # The other regions are not known.
        return [first], [Failed(target=Target(provider=first.name), error=error)]
    return _connected([replace(first.target, region=region) for region in regions])


def _connected(targets: Sequence[Target]) -> tuple[list[Cloud], list[Failed]]:
    clouds: list[Cloud] = []
    failed: list[Failed] = []
    for target, outcome in zip(targets, run_all(connect, targets), strict=True):
        if isinstance(outcome, CloudError | InvalidInput):
            failed.append(Failed(target=target, error=outcome))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            clouds.append(outcome)
    return clouds, failed


def _list_all(
    clouds: Sequence[Cloud],
    price: Callable[[Target], Price],
    contents: Callable[[Cloud, Price], RegionContents],
    *,
    listed: bool,
) -> tuple[list[Scanned], list[Failed]]:
    """List our clusters everywhere. `listed`: the compartments are from a list, also some without rights for us."""
    scanned: list[Scanned] = []
    failed: list[Failed] = []
    outcomes = run_all(lambda cloud: contents(cloud, price(cloud.target)), clouds)
    for cloud, outcome in zip(clouds, outcomes, strict=True):
        if isinstance(outcome, CloudError):
            # Without the right to list, the user could not make machines there either.
            partly = cloud.target.compartment is not None or cloud.name in KUBERNETES
            closed = listed and partly and isinstance(outcome, Denied | Gone)
            failed.append(Failed(target=cloud.target, error=outcome, passed_over=closed))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            if cloud.name in KUBERNETES and not outcome.clusters:
                outcome = replace(outcome, network=())  # reported with the machines of the same account
            scanned.append(Scanned(cloud=cloud, contents=outcome))
            if outcome.error is not None:
                failed.append(Failed(target=cloud.target, error=outcome.error))
    return scanned, failed
