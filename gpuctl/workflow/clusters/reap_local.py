"""`reap --provider local`: hosts on this computer whose cluster has no folder any more, to nothing."""

import math
import time
from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.errors import Declined, Usage
from gpuctl.json_documents import ReapResult
from gpuctl.workflow.clusters.reap import Selection, row_of
from inventories.text import did_you_mean, plural
from provision.local import orphans
from provision.local.orphans import Orphan
from provision.local.state import current_user
from provision.provider import Leftover
from provision.rented.tagged_clusters import FoundCluster


def reap_local(app: App, selection: Selection, *, dry_run: bool) -> ReapResult:
    """Find, show, ask, end; return the document of `reap --json`.

    Raises Usage for a name that no such cluster has.
    """
    began = time.monotonic()
    clusters = orphans.find()
    names = selection.names
    chosen = (
        [] if selection.expired or selection.idle else [c for c in clusters if not names or c.name in names]
    )
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
