"""`reap`: everything of ours in an account, found by its tags, to nothing. Needs no file of this computer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gpuctl.errors import Usage
from gpuctl.options import App
from gpuctl.text import dollars, plural
from inventories.errors import InvalidInput, InventoryError
from provision import prices
from provision.cloud import Cloud, Target
from provision.cloud_folder import CloudFolder
from provision.clouds import CLOUDS, connect, installed
from provision.errors import BadCredentials, ProvisionError
from provision.parallel import run_all
from provision.prices import Prices
from provision.reap import FoundCluster, Survey, reap, survey


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where to look. Empty: every cloud that there are credentials for, in its configured region."""

    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    all_regions: bool = False
    profile: str | None = None
    compartment: str | None = None


@dataclass(frozen=True, kw_only=True)
class Which:
    """What to remove of what is found. Empty: all of it."""

    names: tuple[str, ...] = ()
    """Names or ids of clusters."""
    expired: bool = False
    """Only those whose --ttl is over."""

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return not self.names and not self.expired

    def wants(self, cluster: FoundCluster, now: datetime) -> bool:
        """Whether the cluster is to go."""
        named = not self.names or cluster.name in self.names or cluster.id in self.names
        return named and (not self.expired or cluster.expired(now))


def reap_all(app: App, where: Where, which: Which, *, dry_run: bool) -> dict[str, Any]:
    """Look, show, ask, remove; returns the document of `reap --json`."""
    began = time.monotonic()
    now = datetime.now(UTC)
    clouds = _clouds(app, where)
    surveys = _surveys(clouds, _prices(app))
    for name in which.names:
        if not any(name in (c.name, c.id) for found in surveys for c in found.clusters):
            raise Usage(f"There is no cluster {name!r} of ours {_looked_at(clouds)}. Nothing was removed.")
    chosen = [[c for c in found.clusters if which.wants(c, now)] for found in surveys]
    rows = [
        describe(c, now) | {"chosen": c in mine}
        for found, mine in zip(surveys, chosen, strict=True)
        for c in found.clusters
    ]
    document: dict[str, Any] = {
        "clusters": rows,
        "networks": [part for found in surveys for part in found.network],
        "removed": [],
        "leftovers": [],
    }
    _show(app, rows, surveys, clouds)
    todo = [
        (cloud, mine)
        for cloud, found, mine in zip(clouds, surveys, chosen, strict=True)
        if mine or (which.all and found.network)
    ]
    if not dry_run and todo:
        _ask(app, todo)
        for cloud, mine in todo:
            # All: also what came up since the look.
            ids = None if which.all else {cluster.id for cluster in mine}
            leftovers = reap(cloud, ids, say=app.output.say)
            document["leftovers"] += [
                {"kind": left.kind, "id": left.id, "reason": left.reason} for left in leftovers
            ]
            for left in leftovers:
                app.output.error(f"{left.kind} {left.id} is left: {left.reason}")
            if not leftovers:
                document["removed"] += [cluster.id for cluster in mine]
                _forget(app, {cluster.id for cluster in mine})
        if not document["leftovers"]:
            app.output.say(f"{plural(len(document['removed']), 'cluster')} removed; results stay")
    return document | {"seconds": round(time.monotonic() - began, 3)}


def describe(cluster: FoundCluster, now: datetime) -> dict[str, Any]:
    """A found cluster as `reap --json` shows it."""
    age_s = None
    if cluster.since is not None:
        age_s = round((now - datetime.fromisoformat(cluster.since)).total_seconds())
    left_s = None
    if cluster.expires_at is not None:
        left_s = round((datetime.fromisoformat(cluster.expires_at) - now).total_seconds())
    known = cluster.hourly_usd is not None and age_s is not None
    return {
        "cluster": cluster.name,
        "id": cluster.id,
        "owner": cluster.owner,
        "provider": cluster.provider,
        "region": cluster.region,
        "machines": list(cluster.machines),
        "parts": list(cluster.parts),
        "since": cluster.since,
        "age_s": age_s,
        "expires_at": cluster.expires_at,
        "left_s": left_s,
        "expired": cluster.expired(now),
        "hourly_usd": cluster.hourly_usd,
        "cost_usd": round((cluster.hourly_usd or 0) * (age_s or 0) / 3600, 2) if known else None,
    }


def _clouds(app: App, where: Where) -> list[Cloud]:
    """A cloud for each region that is to be looked at."""
    names = where.providers or tuple(name for name in CLOUDS if installed(name))
    if not names:
        sdks = " ".join(sdk for _, sdk, _ in CLOUDS.values())
        raise Usage(f"No cloud's SDK is installed beside gpuctl: `pip install {sdks}`.")
    found: list[Cloud] = []
    refused: list[Exception] = []
    for name in names:
        target = Target(provider=name, profile=where.profile, compartment=where.compartment)
        if where.regions:
            target = replace(target, region=where.regions[0])
        try:
            first = connect(target)
            regions = first.regions() if where.all_regions else where.regions or (first.target.region,)
            compartments = first.compartments() if where.compartment is None else ()
        except (BadCredentials, InvalidInput) as error:
            # A cloud that nobody set up here, unless it was asked for.
            if where.providers:
                raise
            refused.append(error)
            continue
        found += [
            connect(replace(first.target, region=region, compartment=compartment))
            for region in regions
            for compartment in compartments or (first.target.compartment,)
        ]
    if not found:
        raise BadCredentials(" ".join(str(error) for error in refused))
    for refusal in refused:
        app.output.detail(f"not looked at: {refusal}")
    return found


def _prices(app: App) -> Prices:
    try:
        return prices.load(app.store.home)
    except InventoryError as error:
        # What is left running matters more than what it costs.
        app.output.error(f"{error} Until then the prices are this release's.")
        return Prices()


def _surveys(clouds: Sequence[Cloud], known: Prices) -> list[Survey]:
    def look(cloud: Cloud) -> Survey:
        def price(shape: str) -> float | None:
            found = known.of(shape, cloud.target.region)
            return found.usd_per_hour if found else None

        return survey(cloud, price)

    outcomes = run_all(look, clouds)
    for cloud, outcome in zip(clouds, outcomes, strict=True):
        if isinstance(outcome, ProvisionError):
            # What could not be looked at is not known to be empty.
            raise type(outcome)(f"{cloud.name} {cloud.target.region}: {outcome}") from outcome
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Survey)]


def _looked_at(clouds: Sequence[Cloud]) -> str:
    return "in " + ", ".join(f"{cloud.name} {cloud.target.region}" for cloud in clouds)


def _show(
    app: App, rows: Sequence[dict[str, Any]], surveys: Sequence[Survey], clouds: Sequence[Cloud]
) -> None:
    if rows and not app.options.json:
        from gpuctl.tables import found_table

        app.output.table(found_table(rows))
    if not rows:
        app.output.say(f"no cluster of ours {_looked_at(clouds)}")
    for cloud, found in zip(clouds, surveys, strict=True):
        if found.network:
            count = plural(len(found.network), "part")
            app.output.say(f"the shared network in {cloud.name} {cloud.target.region}: {count}")


def _ask(app: App, todo: Sequence[tuple[Cloud, Sequence[FoundCluster]]]) -> None:
    clusters = [cluster for _, mine in todo for cluster in mine]
    machines = sum(len(cluster.machines) for cluster in clusters)
    prices = [cluster.hourly_usd for cluster in clusters]
    price = "" if None in prices else f", {dollars(sum(p or 0 for p in prices))} an hour"
    owners = sorted({cluster.owner for cluster in clusters if cluster.owner})
    of = f" of {', '.join(owners)}" if owners else ""
    what = f"{plural(len(clusters), 'cluster')}{of} with {plural(machines, 'machine')}{price}"
    question = f"Remove {what}?" if clusters else "Remove the shared network, which no cluster uses?"
    if not app.output.confirm(question):
        raise Usage("Nothing was removed, as you said no.")


def _forget(app: App, removed: set[str]) -> None:
    """Remove the folders that clusters of these ids have on this computer."""
    for folder in app.store.clusters():
        try:
            record = CloudFolder(folder).load()
        except InventoryError:
            continue  # it is not known to be one of them
        if record is not None and record.id in removed:
            with folder.lock("reap", on_wait=app.output.say):
                folder.remove()
