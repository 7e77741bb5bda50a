"""`cost`: the money of clusters, by cluster, run and day, from the ledger here and from the tags in the accounts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Concatenate, ParamSpec

from gpuctl.app import App
from gpuctl.command_results.clusters import ClusterCost, CostResult, DayCost, RunCost
from gpuctl.errors import Usage
from gpuctl.workflow.clusters.accounts import Accounts, prices_at, readable_record, scan_accounts
from gpuctl.workflow.clusters.bill import ending_of
from inventories.disk.store import ClusterFolder
from inventories.errors import InvalidInput, InventoryError
from inventories.machine import Inventory, Machine
from inventories.specs.checks import parse_duration_s
from provision.clouds import RENTED
from provision.clouds import describe as describe_cloud
from provision.pricing import ledger
from provision.pricing.ledger import Rate, Span
from provision.pricing.plan_price import PlanPrice
from provision.records import CloudCluster, read_time
from provision.rented.tagged_clusters import FoundCluster

P = ParamSpec("P")


def _reports(record: Callable[Concatenate[App, P], None]) -> Callable[Concatenate[App, P], None]:
    """Report an error of the ledger, and continue: machines matter more than their sum."""

    @wraps(record)
    def reporting(app: App, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(app, *args, **kwargs)
        except InventoryError as error:
            app.output.error(f"{error} Until then `gpuctl cost` lacks this change.")

    return reporting


@_reports
def record_price(app: App, folder: ClusterFolder, inventory: Inventory, price: PlanPrice) -> None:
    """Add the price of a rented cluster to the ledger, after `up` has made its machines."""
    cluster = readable_record(folder)
    if inventory.provider not in RENTED or cluster is None:
        return
    known = ledger.rates(app.store.home).get(cluster.id, [])
    launched = sorted(machine.launched_at for machine in inventory.machines if machine.launched_at)
    last = known[-1].since if known else ""
    new = [at for at in launched if at > last]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rate = Rate(
        cluster=folder.name,
        id=cluster.id,
        provider=inventory.provider,
        region=inventory.region,
        account=cluster.target.account,
        since=new[0] if new else now if known else cluster.created_at,
        machines=len(inventory.machines),
        hourly_usd=price.hourly_usd,
        ends_at=ending_of(folder, inventory.provider),
        rest_hourly_usd=(price.network_usd or 0.0) + (price.control_plane_usd or 0.0),
        least_s=describe_cloud(inventory.provider).least_billed_s(cluster.shape),
    )
    ledger.record(app.store.home, rate)


@_reports
def record_removal(app: App, folder: ClusterFolder, machines: Sequence[Machine]) -> None:
    """Add the end of a rented cluster to the ledger. `machines`: the removed ones."""
    cluster = readable_record(folder)
    if cluster is None:
        return
    now = datetime.now(UTC)
    known = ledger.rates(app.store.home).get(cluster.id, [])
    if not known and machines:  # its `up` was cut off, or on another computer
        launched = min((machine.launched_at for machine in machines if machine.launched_at), default=None)
        start = Rate(
            cluster=folder.name,
            id=cluster.id,
            provider=cluster.target.provider,
            region=cluster.target.region,
            account=cluster.target.account,
            since=launched or cluster.created_at,
            machines=len(machines),
            hourly_usd=_price_here(app, folder, cluster, len(machines)),
        )
        ledger.record(app.store.home, start)
        known = [start]
    if known and not known[-1].ended:
        last = known[-1]
        if len(machines) > last.machines:
            # Its `up` was cut off before it recorded its new machines.
            times = [machine.launched_at for machine in machines if machine.launched_at]
            usd = last.hourly_usd
            last = replace(
                last,
                since=min((at for at in times if at > last.since), default=last.since),
                machines=len(machines),
                hourly_usd=usd / last.machines * len(machines) if usd is not None and last.machines else None,
                unknown="An interrupted `up` made more machines, which count with the price of the others.",
            )
            ledger.record(app.store.home, last)
        ends = read_time(last.ends_at)
        vanished = bool(last.machines) and not machines and (ends is None or ends > now)
        unknown = "Its machines had ended before `gpuctl down`, at an unknown time." if vanished else ""
        ledger.record(app.store.home, ledger.end_of(last, now, unknown))


def _price_here(app: App, folder: ClusterFolder, cluster: CloudCluster, count: int) -> float | None:
    """Return the price of a cluster without a rate, USD an hour: the inventory's, or else the list price."""
    if folder.exists():
        return folder.load().hourly_usd
    each_usd = None if cluster.spot else prices_at(app)(cluster.target)(cluster.shape)
    return None if each_usd is None else each_usd * count


@_reports
def record_reaped(app: App, cluster: FoundCluster) -> None:
    """Add the end of a cluster that `reap` removed to the ledger, also of another computer's."""
    known = ledger.rates(app.store.home).get(cluster.id, [])
    start = known[-1] if known else _rate_of(cluster)
    if start is None or start.ended:
        return
    if not known:
        ledger.record(app.store.home, start)
    ledger.record(app.store.home, ledger.end_of(start, datetime.now(UTC)))


def _rate_of(cluster: FoundCluster) -> Rate | None:
    """Return the price of a cluster by its tags. `None`: it has no machines."""
    if cluster.since is None:
        return None
    return Rate(
        cluster=cluster.name,
        id=cluster.id,
        provider=cluster.provider,
        region=cluster.region,
        since=cluster.since,
        machines=len(cluster.machines),
        hourly_usd=cluster.hourly_usd,
    )


@dataclass(frozen=True, kw_only=True)
class ClusterSpans:
    """The times of a cluster with their prices, and the gaps in this knowledge."""

    last: Rate
    spans: tuple[Span, ...]
    running: bool
    """Whether it exists, or may: its account did not answer in full."""
    unknown: str = ""
    """Sentences on gaps in which the cluster cost at most as much as the spans. Empty: no such gap."""
    open: str = ""
    """Sentences on gaps in which it may have cost more than the spans. Empty: no such gap."""


def cost_of_clusters(app: App, since: datetime) -> CostResult:
    """Return the costs of clusters and runs since a time, with the gaps. Asks the clouds."""
    rates = ledger.rates(app.store.home)  # before the scan: a cluster made during it is no missing one
    accounts = scan_accounts(app)
    costs = spans_of_clusters(rates, accounts, since, datetime.now(UTC))
    runs = []
    for folder in app.store.runs():
        try:
            run, result = folder.load_run(), folder.load_result()
        except InventoryError as error:
            app.output.say(f"note: {error}")
            continue
        began = read_time(run.started_at)
        if began is not None and began >= since:
            usd = None if result is None else result.cost_usd
            runs.append((RunCost(run=run.run, cluster=run.cluster, usd=usd), began))
    clusters = tuple(_document(cost, runs) for cost in costs)
    days = ledger.by_day(span for cost in costs for span in cost.spans)
    known = [cluster.usd for cluster in clusters if cluster.usd is not None]
    return CostResult(
        since=_text(since),
        clusters=clusters,
        days=tuple(DayCost(day=day, usd=usd) for day, usd in days.items()),
        usd=round(sum(known), 4) if known or not clusters else None,
        complete=not accounts.problems and not any(cost.open for cost in costs),
        unknown=tuple(map(str, accounts.problems)),
    )


def _document(cost: ClusterSpans, runs: Sequence[tuple[RunCost, datetime]]) -> ClusterCost:
    usd, complete = ledger.total_usd(cost.spans)
    begin, end = cost.spans[0].begin, max(span.end for span in cost.spans)
    return ClusterCost(
        cluster=cost.last.cluster,
        id=cost.last.id,
        provider=cost.last.provider,
        region=cost.last.region,
        usd=usd if usd or complete else None,
        from_=_text(begin),
        to=None if cost.running else _text(end),
        unknown=f"{cost.open} {cost.unknown}".strip() or None,
        runs=tuple(run for run, at in runs if run.cluster == cost.last.cluster and begin <= at <= end),
    )


def spans_of_clusters(
    rates: Mapping[str, Sequence[Rate]], accounts: Accounts, since: datetime, now: datetime
) -> tuple[ClusterSpans, ...]:
    """Return the times of every cluster between two times, the oldest first.

    `rates`: the ledger before the scan. A cluster that its account does not have any more counts until now.
    """
    existing = {cluster.id: cluster for cluster in accounts.clusters}
    answered = accounts.answered
    results = []
    for cluster_id in dict.fromkeys((*rates, *existing)):
        known, open_, missing = list(rates.get(cluster_id, ())), [], ""
        cluster = existing.get(cluster_id)
        unanswered = False
        if cluster is not None:
            known = _with_tags(known, cluster, now)
        elif _is_billed(known[-1], now):
            place = (known[-1].provider, known[-1].region, known[-1].account)
            unanswered = bool(accounts.problems) or place not in answered
            if unanswered:
                open_.append("Its account was not asked, or did not answer in full: it counts until now.")
            else:
                missing = "It ended at an unknown time, and counts until now: `gpuctl down` here ends that."
        if not known:
            continue
        spans = tuple(part for span in ledger.spans(known, now) if (part := span.within(since, now)))
        if not ledger.total_usd(spans)[1]:
            open_.append("The price of its machines is not known for all of the time.")
        if spans:
            results.append(
                ClusterSpans(
                    last=known[-1],
                    spans=spans,
                    running=cluster is not None or unanswered,
                    unknown=" ".join(filter(None, [*(rate.unknown for rate in known), missing])),
                    open=" ".join(open_),
                )
            )
    return tuple(sorted(results, key=lambda cost: cost.spans[0].begin))


def _is_billed(last: Rate, now: datetime) -> bool:
    """Return whether a cluster costs money by its last rate."""
    ends = read_time(last.ends_at)
    return not last.ended and (ends is None or ends > now or last.rest_hourly_usd > 0)


def _with_tags(known: Sequence[Rate], cluster: FoundCluster, now: datetime) -> list[Rate]:
    """Return the rates of an existing cluster, corrected by its tags: it counts with no less than it costs."""
    tagged = _rate_of(cluster)
    if tagged is None:  # a control plane alone, or the rest of a removal
        return [
            *known,
            *(replace(rate, hourly_usd=cluster.most_hourly_usd) for rate in known[-1:] if rate.ended),
        ]
    launched = read_time(tagged.since) or now
    rates = [rate for rate in known if not (rate.ended and ledger.begin_of(rate) > launched)]
    if not rates or rates[-1].ended:
        rates.append(replace(tagged, ends_at=cluster.ends_at))
    last, on = rates[-1], len(cluster.machines) - len(cluster.off)
    if on > last.machines:
        begin = ledger.begin_of(last)
        launches = [at for _, text in cluster.launched if (at := read_time(text)) and at > begin]
        more = replace(last, since=_text(min(launches, default=begin)), machines=on)
        note = "It has more machines than the ledger, which count with their highest price."
        rates.append(replace(more, hourly_usd=cluster.most_hourly_usd, unknown=note))
    elif len(cluster.machines) < last.machines:
        rates[-1] = replace(last, unknown="It has fewer machines than the ledger, and counts with all.")
    ends = read_time(rates[-1].ends_at)
    if ends is not None and ends <= now:  # it outlived its end
        rates[-1] = replace(rates[-1], ends_at=None)
    return rates


def since_of(text: str | None, now: datetime) -> datetime:
    """Return the begin of a day such as `2026-11-01`, or the time `7d` before `now`. `None`: the month's begin.

    Raises Usage.
    """
    if text is None:
        return ledger.month_of(now)[0]
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text) and (day := read_time(text)) is not None:
        return day
    try:
        return now - timedelta(seconds=parse_duration_s(text, "--since"))
    except (InvalidInput, OverflowError) as error:
        raise Usage(
            f"--since {text!r} is no day and no time: write a day such as {now:%Y-%m}-01, or 7d."
        ) from error


def _text(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
