"""Where `reap` looks: accounts, regions, compartments; and what of that could not be looked at.

A cloud that nobody has set up on this computer is passed over. Whatever else keeps us from looking is told, since
what was not looked at is not known to be empty. Nothing is changed in here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inventories.errors import InvalidInput
from provision.clouds import CLOUDS, KUBERNETES, base_of, describe, installed
from provision.errors import BadCredentials, CloudError, Denied, Gone, NoAnswer
from provision.parallel import run_all, values
from provision.records import Target
from provision.rented.interface import Cloud, configured, connect
from provision.rented.tagged_clusters import Price, RegionContents, list_clusters

MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where to look. Empty: every cloud that is set up here, in its configured region."""

    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    all_regions: bool = False
    profile: str | None = None
    compartment: str | None = None
    """None: every compartment that may be looked into."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Somewhere that was looked at."""

    cloud: Cloud
    contents: RegionContents

    def __str__(self) -> str:
        return name_of(self.cloud.target)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Somewhere that could not be looked at."""

    target: Target
    error: CloudError | InvalidInput
    passed_over: bool = False
    """True: nobody asked for it, and nothing of ours is to be expected there."""

    def __str__(self) -> str:
        return f"{name_of(self.target)}: {self.error}"


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """All that there was to look at."""

    found: tuple[Found, ...]
    failed: tuple[Failed, ...]

    @property
    def problems(self) -> tuple[Failed, ...]:
        """Where something of ours may be that we don't know of."""
        return tuple(one for one in self.failed if not one.passed_over)

    @property
    def passed_over(self) -> tuple[Failed, ...]:
        """The others."""
        return tuple(one for one in self.failed if one.passed_over)


def name_of(target: Target) -> str:
    """`aws us-east-1`, and the compartment where it is not the whole account's."""
    compartment = None if target.compartment == target.account else target.compartment
    return " ".join(part for part in (target.provider, target.region, compartment) if part)


def scan(scope: Scope, price: Callable[[Target], Price]) -> ScanResult:
    """Look everywhere. `price` tells what machines cost there.

    Raises what kept us from it where nothing could be looked at.
    """
    names = scope.providers or [name for name in CLOUDS if installed(name)]
    connected = values(run_all(lambda name: _connect_all(name, scope), names))
    if not scope.providers:
        connected += [_services(cloud) for clouds, _ in connected for cloud in clouds]
    regions = {cloud.target.region for clouds, _ in connected for cloud in clouds}
    found: list[Found] = []
    failed: list[Failed] = []
    for clouds, not_connected in connected:
        listed, refused = _list_all(clouds, price, listed=scope.compartment is None)
        found += listed
        # A region is one cloud's alone, and the others don't know it.
        failed += [
            replace(one, passed_over=isinstance(one.error, InvalidInput) and one.target.region in regions)
            for one in not_connected
        ]
        failed += (
            refused
            if listed or _all_services(refused)
            else [replace(one, passed_over=False) for one in refused]
        )
    if not scope.providers:
        failed = _without_strangers(failed)
    result = ScanResult(found=tuple(found), failed=tuple(failed))
    if not found:
        _raise(result.problems or result.failed)
    return result


def _all_services(failed: Sequence[Failed]) -> bool:
    return all(one.target.provider in KUBERNETES for one in failed)


def _services(cloud: Cloud) -> tuple[list[Cloud], list[Failed]]:
    """The services of Kubernetes in the same account and region."""
    names = [name for name in KUBERNETES if base_of(name) == cloud.name]
    return _connected([replace(cloud.target, provider=name) for name in names])


def _connect_all(name: str, scope: Scope) -> tuple[list[Cloud], list[Failed]]:
    """The regions and compartments of one cloud."""
    compartment = scope.compartment if describe(name).has_compartments else None
    target = Target(provider=name, profile=scope.profile, compartment=compartment)
    if scope.regions:
        regions, failed = _connected([replace(target, region=region) for region in scope.regions])
    else:
        regions, failed = _connected([target])
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
    inner, more = _connected([replace(c.target, compartment=one) for c in regions for one in compartments])
    return inner, failed + more


def _all_regions(first: Cloud) -> tuple[list[Cloud], list[Failed]]:
    try:
        regions = first.regions()
    except BadCredentials as error:
        return [], [Failed(target=first.target, error=error)]
    except CloudError as error:
        # It is not known which others there are.
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
    clouds: Sequence[Cloud], price: Callable[[Target], Price], *, listed: bool
) -> tuple[list[Found], list[Failed]]:
    """`listed`: the compartments are those that a list has, which also has some that we have no rights in."""
    found: list[Found] = []
    failed: list[Failed] = []
    outcomes = run_all(lambda cloud: list_clusters(cloud, price(cloud.target)), clouds)
    for cloud, outcome in zip(clouds, outcomes, strict=True):
        if isinstance(outcome, CloudError):
            # Who may not look may not make anything there either.
            partly = cloud.target.compartment is not None or cloud.name in KUBERNETES
            closed = listed and partly and isinstance(outcome, Denied | Gone)
            failed.append(Failed(target=cloud.target, error=outcome, passed_over=closed))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            if cloud.name in KUBERNETES and not outcome.clusters:
                outcome = replace(outcome, network=())  # told with the machines of the same account
            found.append(Found(cloud=cloud, contents=outcome))
            if outcome.error is not None:
                failed.append(Failed(target=cloud.target, error=outcome.error))
    return found, failed


def _without_strangers(failed: Sequence[Failed]) -> list[Failed]:
    """Pass over the clouds that nobody has set up here."""
    of_setup = [one for one in failed if isinstance(one.error, BadCredentials | InvalidInput)]
    strangers = {name for name in {one.target.provider for one in of_setup} if not configured(name)}
    return [
        replace(one, passed_over=True) if one in of_setup and one.target.provider in strangers else one
        for one in failed
    ]


def _raise(failed: Sequence[Failed]) -> None:
    """Raise the first error; its message has the others'."""
    sentences = list(dict.fromkeys(str(one) for one in failed))
    more = len(sentences) - MOST_NAMED
    told = sentences[:MOST_NAMED] + [f"So it is at {more} other places."] * (more > 0)
    raise type(failed[0].error)(" ".join(told)) from failed[0].error
