"""Where `reap` looks: accounts, regions, compartments; and what of that could not be looked at.

A cloud that nobody has set up on this computer is passed over. Whatever else keeps us from looking is told, since
what was not looked at is not known to be empty. Nothing is changed in here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inventories.errors import InvalidInput
from provision.cloud.interface import Cloud, Target
from provision.cloud.tagged_clusters import Price, Survey, survey
from provision.clouds import CLOUDS, configured, connect, installed
from provision.errors import BadCredentials, CloudError, Denied, Gone
from provision.parallel import run_all

MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where to look. Empty: every cloud that is set up here, in its configured region."""

    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    all_regions: bool = False
    profile: str | None = None
    compartment: str | None = None
    """None: every compartment that may be looked into."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Somewhere that was looked at."""

    cloud: Cloud
    survey: Survey

    def __str__(self) -> str:
        return name_of(self.cloud.target)


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """Somewhere that could not be looked at."""

    target: Target
    error: CloudError | InvalidInput
    passed_over: bool = False
    """True: nobody asked for it, and nothing of ours is to be expected there."""

    def __str__(self) -> str:
        return f"{name_of(self.target)}: {self.error}"


@dataclass(frozen=True, kw_only=True)
class Sight:
    """All that there was to look at."""

    seen: tuple[Seen, ...]
    unseen: tuple[Unseen, ...]

    @property
    def problems(self) -> tuple[Unseen, ...]:
        """Where something of ours may be that we don't know of."""
        return tuple(one for one in self.unseen if not one.passed_over)

    @property
    def passed_over(self) -> tuple[Unseen, ...]:
        """The others."""
        return tuple(one for one in self.unseen if one.passed_over)


def name_of(target: Target) -> str:
    """`aws us-east-1`, and the compartment where it is not the whole account's."""
    compartment = None if target.compartment == target.account else target.compartment
    return " ".join(part for part in (target.provider, target.region, compartment) if part)


def look(where: Where, price: Callable[[Target], Price]) -> Sight:
    """Look everywhere. `price` tells what machines cost there.

    Raises what kept us from it where nothing could be looked at.
    """
    places = [_places(name, where) for name in where.providers or [n for n in CLOUDS if installed(n)]]
    regions = {cloud.target.region for clouds, _ in places for cloud in clouds}
    seen: list[Seen] = []
    unseen: list[Unseen] = []
    for clouds, failed in places:
        found, closed = _surveys(clouds, price, listed=where.compartment is None)
        seen += found
        # A region is one cloud's alone, and the others don't know it.
        unseen += [
            replace(one, passed_over=isinstance(one.error, InvalidInput) and one.target.region in regions)
            for one in failed
        ]
        unseen += closed if found else [replace(one, passed_over=False) for one in closed]
    if not where.providers:
        unseen = _without_strangers(unseen)
    sight = Sight(seen=tuple(seen), unseen=tuple(unseen))
    if not seen:
        _raise(sight.problems or sight.unseen)
    return sight


def _places(name: str, where: Where) -> tuple[list[Cloud], list[Unseen]]:
    """The regions and compartments of one cloud."""
    compartment = where.compartment if name == "oci" else None
    target = Target(provider=name, profile=where.profile, compartment=compartment)
    if where.regions:
        regions, failed = _connected([replace(target, region=region) for region in where.regions])
    else:
        regions, failed = _connected([target])
        if regions and where.all_regions:
            regions, failed = _all_regions(regions[0])
    if not regions or where.compartment is not None:
        return regions, failed
    first = regions[0]
    try:
        compartments = first.compartments()
    except BadCredentials as error:
        return [], [*failed, Unseen(target=first.target, error=error)]
    except CloudError as error:
        return regions, [*failed, Unseen(target=first.target, error=error)]
    if not compartments:
        return regions, failed
    inner, more = _connected([replace(c.target, compartment=one) for c in regions for one in compartments])
    return inner, failed + more


def _all_regions(first: Cloud) -> tuple[list[Cloud], list[Unseen]]:
    try:
        regions = first.regions()
    except BadCredentials as error:
        return [], [Unseen(target=first.target, error=error)]
    except CloudError as error:
        # It is not known which others there are.
        return [first], [Unseen(target=Target(provider=first.name), error=error)]
    return _connected([replace(first.target, region=region) for region in regions])


def _connected(targets: Sequence[Target]) -> tuple[list[Cloud], list[Unseen]]:
    clouds: list[Cloud] = []
    failed: list[Unseen] = []
    for target, outcome in zip(targets, run_all(connect, targets), strict=True):
        if isinstance(outcome, CloudError | InvalidInput):
            failed.append(Unseen(target=target, error=outcome))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            clouds.append(outcome)
    return clouds, failed


def _surveys(
    clouds: Sequence[Cloud], price: Callable[[Target], Price], *, listed: bool
) -> tuple[list[Seen], list[Unseen]]:
    """`listed`: the compartments are those that a list has, which also has some that we have no rights in."""
    seen: list[Seen] = []
    unseen: list[Unseen] = []
    outcomes = run_all(lambda cloud: survey(cloud, price(cloud.target)), clouds)
    for cloud, outcome in zip(clouds, outcomes, strict=True):
        if isinstance(outcome, CloudError):
            closed = listed and cloud.target.compartment is not None and isinstance(outcome, Denied | Gone)
            unseen.append(Unseen(target=cloud.target, error=outcome, passed_over=closed))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            seen.append(Seen(cloud=cloud, survey=outcome))
            if outcome.unseen is not None:
                unseen.append(Unseen(target=cloud.target, error=outcome.unseen))
    return seen, unseen


def _without_strangers(unseen: Sequence[Unseen]) -> list[Unseen]:
    """Pass over the clouds that nobody has set up here."""
    of_setup = [one for one in unseen if isinstance(one.error, BadCredentials | InvalidInput)]
    strangers = {name for name in {one.target.provider for one in of_setup} if not configured(name)}
    return [
        replace(one, passed_over=True) if one in of_setup and one.target.provider in strangers else one
        for one in unseen
    ]


def _raise(unseen: Sequence[Unseen]) -> None:
    """Raise the first error; its message has the others'."""
    sentences = list(dict.fromkeys(str(one) for one in unseen))
    more = len(sentences) - MOST_NAMED
    told = sentences[:MOST_NAMED] + [f"So it is at {more} other places."] * (more > 0)
    raise type(unseen[0].error)(" ".join(told)) from unseen[0].error
