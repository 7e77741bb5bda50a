"""`reap`: everything of ours in an account, found by its tags, to nothing. Needs no file of this computer.

With `--provider local`: hosts on this computer whose cluster has no folder any more.
"""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.command_results import same_fields
from gpuctl.command_results.upkeep import ReapFailure, ReapResult, ReapRow, UnknownUse
from gpuctl.errors import Attention, Declined, Usage
from gpuctl.global_options import DEFAULT_CLUSTER
from gpuctl.text import dollars
from gpuctl.workflow.clusters.accounts import prices_at, readable_record
from gpuctl.workflow.clusters.cost import record_reaped
from gpuctl.workflow.clusters.unused import find_unused
from inventories.disk.store import ClusterFolder
from inventories.errors import InvalidInput, InventoryError
from inventories.text import did_you_mean, plural
from provision.clouds import CLOUDS, descriptions, installed
from provision.errors import ProvisionError
from provision.local import orphans
from provision.local.orphans import Orphan
from provision.local.state import current_user
from provision.provider import Leftover
from provision.records import Target, read_time
from provision.rented.find_or_create import all_gone
from provision.rented.interface import Cloud
from provision.rented.scan import ScanResult, Scope, name_of, scan
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import FoundCluster, RegionContents
from provision.rented.teardown import remove
from provision.waiting import SystemClock


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The user's choice of clusters to remove. Empty: all."""

    names: tuple[str, ...] = ()
    """Names or ids of clusters."""
    one_each: bool = False
    """Each name means one cluster, not all of that name."""
    expired: bool = False
    """Only clusters whose --ttl is over."""
    idle: bool = False
    """Only clusters without use for the time of their --idle; with `expired` both."""
    unused: frozenset[str] = frozenset()
    """Ids of these clusters."""

    def wants_network(self, region: RegionContents) -> bool:
        """Return whether to remove the shared network, unless a cluster stays.

        Also with `expired` if no cluster exists: the network has no time limit of its own, and may cost money for
        ever.
        """
        limited = self.expired or self.idle
        return bool(region.network) and not self.names and not (limited and region.clusters)

    def wants(self, cluster: FoundCluster, now: datetime) -> bool:
        """Return whether to remove the cluster."""
        named = not self.names or cluster.name in self.names or cluster.id in self.names
        if not self.expired and not self.idle:
            return named
        return named and ((self.expired and cluster.expired(now)) or cluster.id in self.unused)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The resources to remove in a place."""

    cloud: Cloud
    clusters: tuple[FoundCluster, ...]
    """Empty: only the shared network, which no cluster uses."""
    network: tuple[str, ...]


@dataclass(kw_only=True)
class Outcome:
    """The result of the removals."""

    removed: list[str] = field(default_factory=list)
    """Ids of clusters."""
    leftovers: list[Leftover] = field(default_factory=list)
    failed: list[ReapFailure] = field(default_factory=list)


def reap_all(app: App, scope: Scope, selection: Selection, *, dry_run: bool) -> ReapResult:
    """Scan, show, ask, remove; return the document of `reap --json`.

    A place that can't be scanned or emptied is reported, and blocks nothing else.
    """
    began = time.monotonic()
    now = datetime.now(UTC)
    if not scope.providers and not any(installed(name) for name in CLOUDS):
        sdks = " ".join(cloud.sdk for cloud in descriptions() if cloud.sdk)
        raise Usage(f"No cloud's SDK is installed beside gpuctl: `pip install {sdks}`.")
    result = scan(replace(scope, more_regions=_configured_regions(app)), prices_at(app))
    problems: dict[str, str] = {}
    if selection.idle:
        clusters = [cluster for region in result.scanned for cluster in region.contents.clusters]
        use = find_unused(clusters, _folders_of(app, {cluster.id for cluster in clusters}))
        selection, problems = replace(selection, unused=use.ids), dict(use.problems)
        for cluster in clusters:
            if cluster.id in problems:
                app.output.error(f"{cluster.name} stays: {problems[cluster.id]}")
    rows = [
        row_of(cluster, now, chosen=selection.wants(cluster, now))
        for region in result.scanned
        for cluster in region.contents.clusters
    ]
    _show(app, rows, result)
    _check_names(selection, rows, result)
    chosen = [
        Chosen(
            cloud=region.cloud,
            clusters=tuple(c for c in region.contents.clusters if selection.wants(c, now)),
            network=region.contents.network,
        )
        for region in result.scanned
        if any(selection.wants(c, now) for c in region.contents.clusters)
        or selection.wants_network(region.contents)
    ]
    outcome = Outcome()
    if chosen and not dry_run:
        _ask(app, chosen)
        for place in chosen:
            _remove(app, place, outcome, selection)
        if not outcome.leftovers and not outcome.failed:
            app.output.say(f"{plural(len(outcome.removed), 'cluster')} removed; results stay")
    return ReapResult(
        clusters=tuple(rows),
        networks=tuple(part for region in result.scanned for part in region.contents.network),
        removed=tuple(outcome.removed),
        leftovers=tuple(outcome.leftovers),
        failed=tuple(outcome.failed),
        not_looked_at=tuple(_failure(place.target, place.error) for place in result.problems),
        not_asked=tuple(UnknownUse(id=cluster_id, reason=reason) for cluster_id, reason in problems.items()),
        seconds=round(time.monotonic() - began, 3),
    )


def _configured_regions(app: App) -> tuple[str, ...]:
    """Return the regions of new clusters. A mistake in the file is reported: it must not keep machines alive."""
    try:
        return app.config.region
    except InvalidInput as error:
        app.output.error(f"{error} Regions that it may name are not looked at.")
        return ()


def reap_local(app: App, selection: Selection, *, dry_run: bool) -> ReapResult:
    """Find, show, ask, end; return the document of `reap --json`.

    Raises Usage for a name that no such cluster has.
    """
    began = time.monotonic()
    clusters = orphans.find()
    names = selection.names
    rented = selection.expired or selection.idle
    chosen = [] if rented else [c for c in clusters if not names or c.name in names]
    now = datetime.now(UTC)
    rows = [row_of(_as_found(cluster), now, chosen=cluster in chosen) for cluster in clusters]
    if rows and not app.options.json:
        from gpuctl.tables.lists import found_table

        app.output.table(found_table(rows))
    if not rows:
        app.output.say("no local hosts without a cluster's folder; gpuctl down ends hosts that have one")
    if missing := set(names) - {cluster.name for cluster in clusters}:
        near = did_you_mean(min(missing), (cluster.name for cluster in clusters)) or "."
        raise Usage(
            f"No local hosts of a cluster {min(missing)!r} without a folder run here{near} `gpuctl down --cluster "
            f"{min(missing)}` ends hosts whose cluster has a folder."
        )
    removed: list[str] = []
    leftovers: list[Leftover] = []
    if chosen and not dry_run:
        hosts = sum(len(cluster.hosts) for cluster in chosen)
        if not app.output.confirm(f"End {plural(hosts, 'local host')} and all that runs there?"):
            raise Declined("Cancelled: nothing was ended.")
        for cluster in chosen:
            left = orphans.end(cluster)
            leftovers += left
            removed += [] if left else [cluster.cluster]
            for each in left:
                app.output.error(f"{each.kind} {each.id} is left: {each.reason}")
        if not leftovers:
            app.output.say(f"{plural(hosts, 'local host')} ended")
    return ReapResult(
        clusters=tuple(rows),
        removed=tuple(removed),
        leftovers=tuple(leftovers),
        seconds=round(time.monotonic() - began, 3),
    )


def _as_found(orphan: Orphan) -> FoundCluster:
    """Return the hosts as `reap` has clusters of the clouds."""
    known = math.isfinite(orphan.since)
    return FoundCluster(
        name=orphan.name,
        id=orphan.cluster,
        owner=current_user(),
        provider="local",
        region="",
        machines=orphan.hosts,
        resources=(),
        since=datetime.fromtimestamp(orphan.since, UTC).isoformat(timespec="seconds") if known else None,
        expires_at=None,
        hourly_usd=0.0,
    )


def row_of(cluster: FoundCluster, now: datetime, *, chosen: bool) -> ReapRow:
    """Return a cluster as `reap --json` shows it."""
    since, end = read_time(cluster.since), read_time(cluster.expires_at)
    cost_usd = cluster.cost_usd(now) if cluster.machines else None
    return ReapRow(
        **same_fields(ReapRow, cluster)
        | {
            "cluster": cluster.name,
            "parts": cluster.resources,
            "age_s": None if since is None else round((now - since).total_seconds()),
            "left_s": None if end is None else round((end - now).total_seconds()),
            "expired": cluster.expired(now),
            "cost_usd": None if cost_usd is None else round(cost_usd, 4),
            "chosen": chosen,
        }
    )


def _failure(target: Target, error: object) -> ReapFailure:
    return ReapFailure(
        provider=target.provider, region=target.region, compartment=target.compartment, reason=str(error)
    )


def _looked_at(result: ScanResult) -> str:
    places = dict.fromkeys(f"{region.cloud.name} {region.cloud.target.region}" for region in result.scanned)
    return "in " + ", ".join(places)


def _show(app: App, rows: Sequence[ReapRow], result: ScanResult) -> None:
    if rows and not app.options.json:
        from gpuctl.tables.lists import found_table

        app.output.table(found_table(rows))
    if not rows:
        app.output.say(f"no cluster of ours {_looked_at(result)}")
    for region in result.scanned:
        if region.contents.network:
            app.output.say(f"the shared network in {region}: {plural(len(region.contents.network), 'part')}")
    for place in result.passed_over:
        app.output.detail(f"not looked at: {place}")
    for place in result.problems:
        app.output.error(f"not looked at: {place}")


def _check_names(selection: Selection, rows: Sequence[ReapRow], result: ScanResult) -> None:
    """Raise Usage for an unknown name, and for one of clusters of several people, or of several if one is meant."""
    known = {name for row in rows for name in (row.cluster, row.id)}
    for name in selection.names:
        if name in known:
            continue
        if result.problems:
            raise Attention(
                f"No cluster {name!r} of ours was found {_looked_at(result)}; it may be where we could not look. "
                "Nothing was removed."
            )
        near = did_you_mean(name, known) or "."
        raise Usage(f"There is no cluster {name!r} of ours {_looked_at(result)}{near} Nothing was removed.")
    for name in selection.names:
        same = {row.id: row for row in rows if row.cluster == name and row.id not in selection.names}
        owners = {row.owner for row in same.values()}
        if len(same) > 1 and (selection.one_each or len(owners) > 1):
            listing = "\n".join(
                f"  {cluster_id}: {row.provider}, {row.region}, of {row.owner or 'somebody'}"
                for cluster_id, row in same.items()
            )
            raise Usage(
                f"{len(same)} clusters are called {name}:\n{listing}\nName those that you mean by id: gpuctl reap ID"
            )


def _ask(app: App, chosen: Sequence[Chosen]) -> None:
    clusters = [cluster for place in chosen for cluster in place.clusters]
    machines = sum(len(cluster.machines) for cluster in clusters)
    hourly = [cluster.hourly_usd for cluster in clusters if cluster.machines]
    price = f", {dollars(sum(each or 0 for each in hourly))} an hour" if hourly and None not in hourly else ""
    owners = sorted({cluster.owner for cluster in clusters if cluster.owner})
    of = f" of {', '.join(owners)}" if owners else ""
    subject = f"{plural(len(clusters), 'cluster')}{of} with {plural(machines, 'machine')}{price}"
    question = f"Remove {subject}?" if clusters else "Remove the shared network, which no cluster uses?"
    if not app.output.confirm(question):
        raise Declined("Cancelled: nothing was removed.")


def _remove(app: App, chosen: Chosen, outcome: Outcome, selection: Selection) -> None:
    """Remove the shown resources of a place; report errors, and add them to `outcome`.

    A cluster that was chosen as unused is asked again under its lock, and stays if it is in use now.
    """
    target = chosen.cloud.target

    def fail(error: Exception) -> None:
        app.output.error(f"{name_of(target)}: {error}")
        outcome.failed.append(_failure(target, error))

    say = app.output.say
    folders = _folders_of(app, {cluster.id for cluster in chosen.clusters})
    with ExitStack() as locks:
        busy: set[str] = set()
        for cluster_id, folder in folders.items():
            try:
                locks.enter_context(folder.lock("reap", on_wait=say))
            except InventoryError as error:
                busy.add(cluster_id)
                fail(error)
        clusters = [cluster for cluster in chosen.clusters if cluster.id not in busy]
        unused = [c for c in clusters if c.id in selection.unused and not c.expired(datetime.now(UTC))]
        still_unused = find_unused(unused, folders).ids
        for cluster in unused:
            if cluster.id not in still_unused:
                clusters.remove(cluster)
                say(f"{cluster.name} stays: it may be in use again")
        if not clusters and (busy or unused):
            return
        # The network's locks are next to every cluster's folder.
        files = CloudState(app.store.cluster(DEFAULT_CLUSTER))
        try:
            leftovers = remove(
                chosen.cloud,
                {cluster.id for cluster in clusters},
                clock=SystemClock(),
                say=say,
                network=lambda: files.network_lock(target, "reap", say),
                network_gone=lambda: all_gone(files.network_journal(target)),
            ).leftovers
        except (ProvisionError, InventoryError) as error:
            fail(error)
            return
        for left in leftovers:
            app.output.error(f"{left.kind} {left.id} is left: {left.reason}")
        outcome.leftovers += leftovers
        for cluster in _fully_removed(clusters, chosen.network, leftovers):
            outcome.removed.append(cluster.id)
            record_reaped(app, cluster)
            mine = folders.get(cluster.id)
            # While we waited for the lock somebody may have made another cluster of that name.
            if mine is not None and _id_of(mine) == cluster.id:
                mine.remove()


def _fully_removed(
    clusters: Sequence[FoundCluster], network: Sequence[str], leftovers: Sequence[Leftover]
) -> list[FoundCluster]:
    """Return the clusters without a known leftover."""
    left = {leftover.id for leftover in leftovers}
    of = {cluster.id: {*cluster.machines, *_ids(cluster.resources)} for cluster in clusters}
    if left - _ids(network) - set().union(*of.values()):
        return []  # it came up since, and may be anybody's
    return [cluster for cluster in clusters if not left & of[cluster.id]]


def _ids(parts: Sequence[str]) -> set[str]:
    return {part.partition(" ")[2] for part in parts}


def _folders_of(app: App, ids: set[str]) -> dict[str, ClusterFolder]:
    """Return the folders that clusters of these ids have on this computer."""
    folders = {_id_of(folder): folder for folder in app.store.clusters()}
    return {cluster_id: folder for cluster_id, folder in folders.items() if cluster_id in ids and cluster_id}


def _id_of(folder: ClusterFolder) -> str | None:
    """`None`: it is no rented cluster's, or not known to be."""
    record = readable_record(folder)
    return record.id if record else None
