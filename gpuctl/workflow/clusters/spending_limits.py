"""The limits of the user's configuration on the money of all clusters together: `up` keeps them.

Two commands on one computer launch one after the other. Two computers may launch at once: so each looks again after
its launch.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpuctl.app import App
from gpuctl.text import clean, with_tilde
from gpuctl.workflow.clusters.accounts import Accounts, readable_record, scan_accounts
from gpuctl.workflow.clusters.bill import ending_of
from gpuctl.workflow.clusters.cost import ClusterSpans, spans_of_clusters
from gpuctl.workflow.clusters.limits import limits_of
from inventories.disk import lock
from inventories.disk.store import ClusterFolder
from inventories.text import dollars, first_of, plural
from provision.clouds import refresh_command
from provision.errors import RefusedPlan
from provision.pricing import ledger
from provision.provider import Plan
from provision.records import Target, read_time
from provision.rented.tagged_clusters import FoundCluster

HOURLY, MONTHLY = "max_hourly_usd", "max_usd_per_month"
LOCK_WAIT_S = 2700.0
"""A launch may wait as long for a network: see `provision.rented.state.NETWORK_LOCK_WAIT_S`."""
MAX_NAMED = 3


def turn_to_launch(app: App, plan: Plan) -> AbstractContextManager[None]:
    """Keep other launches of this computer off while the body checks the limits and launches, if limits are set."""
    if not (adds_cost(plan) and app.config.limited):
        return nullcontext()
    return lock.hold(
        app.store.home / "spending.lock",
        subject="the limits on money",
        command="up",
        wait_s=LOCK_WAIT_S,
        on_wait=app.output.say,
    )


def adds_cost(plan: Plan) -> bool:
    """Return whether the plan makes something that is billed."""
    return not plan.free and bool(plan.create or plan.makes_control_plane)


def refuse_over_limits(app: App, folder: ClusterFolder, plan: Plan) -> tuple[str, ...]:
    """Return notes on the limits, which the plan keeps. Asks the clouds.

    Raises:
        RefusedPlan: the limits do not hold, or it is not known whether they do.
    """
    results = checks(app, folder, plan)
    for check in results:
        if check.problem:
            raise RefusedPlan(f"{check.problem} Nothing was created. {check.advice}")
    return tuple(check.note for check in results)


def unchecked_limits(app: App, plan: Plan) -> tuple[str, ...]:
    """Return a note on the limits for a plan without an account: nobody could ask what exists."""
    if not (adds_cost(plan) and app.config.limited):
        return ()
    return (f"the limits in {with_tilde(str(app.config_path))} are not checked: that needs the account",)


def warn_over_limits(app: App, folder: ClusterFolder, plan: Plan) -> None:
    """Print a warning if the limits do not hold after the launch: another computer launched at the same time."""
    for check in checks(app, folder, plan):
        if check.problem:
            app.output.say(f"warning: {check.problem} {check.advice}", "bold")


@dataclass(frozen=True, kw_only=True)
class Check:
    """A limit, and whether it holds with a plan."""

    note: str = ""
    problem: str = ""
    """Sentences on why the limit does not hold, or may not. Empty: it holds."""
    advice: str = ""


def checks(app: App, folder: ClusterFolder, plan: Plan) -> tuple[Check, ...]:
    """Ask the clouds what they have of gpuctl's, and return the check of each limit that is set."""
    if not (adds_cost(plan) and app.config.limited):
        return ()
    config = app.config
    record = readable_record(folder)
    target = record.target if record else Target(provider=plan.provider, profile=plan.spec.profile)
    rates = ledger.rates(app.store.home) if config.max_usd_per_month is not None else {}
    accounts = scan_accounts(app, target)
    existing = existing_costs(accounts, plan, record.id if record else None, not_asked(app, accounts, folder))
    elastic = plan.spec.max_count is not None or limits_of(folder) is not None
    usd = most_hourly_usd(plan, elastic=elastic)
    source = with_tilde(str(app.config_path))
    results = []
    if config.max_hourly_usd is not None:
        results.append(check_hourly(config.max_hourly_usd, usd, plan, existing, source))
    if config.max_usd_per_month is not None:
        now = datetime.now(UTC)
        begin, end = ledger.month_of(now)
        spent = spans_of_clusters(rates, accounts, begin, now)
        results.append(
            check_month(config.max_usd_per_month, usd, plan, existing, spent, source, now=now, end=end)
        )
    return tuple(results)


@dataclass(frozen=True, kw_only=True)
class ExistingCosts:
    """Clusters and networks in the accounts, without the cluster of a plan."""

    clusters: tuple[FoundCluster, ...] = ()
    network_hourly_usd: float = 0.0
    """Price of the shared networks that the plan's price does not have."""
    unknown: tuple[str, ...] = ()
    """Sentences on places and prices that are not known."""

    @property
    def most_hourly_usd(self) -> float:
        """The highest price of everything whose price is known."""
        return self.network_hourly_usd + sum(cluster.most_hourly_usd or 0.0 for cluster in self.clusters)

    def listing(self) -> str:
        """Return a line a cluster, the most expensive first. Empty: no cluster."""
        ordered = sorted(self.clusters, key=lambda cluster: -(cluster.most_hourly_usd or float("inf")))
        lines = []
        for cluster in ordered:
            usd = cluster.most_hourly_usd
            facts = [
                f"{cluster.provider} {cluster.region}",
                plural(len(cluster.machines), "machine"),
                "price not known" if usd is None else f"{dollars(usd)} an hour",
                f"until {cluster.expires_at}" if cluster.expires_at else "without a time limit",
                f"of {clean(cluster.owner)}" if cluster.owner else "",
                f"id {cluster.id}",
            ]
            lines.append(f"\n  {clean(cluster.name)}: {', '.join(filter(None, facts))}")
        if self.network_hourly_usd:
            lines.append(f"\n  shared networks: {dollars(self.network_hourly_usd)} an hour")
        return f" In the accounts now:{''.join(lines)}" if lines else ""


def not_asked(app: App, accounts: Accounts, planned: ClusterFolder) -> tuple[str, ...]:
    """Return a sentence for each cluster here, but `planned`, that an account that was not asked may bill."""
    now, listed = datetime.now(UTC), {cluster.id for cluster in accounts.clusters}
    sentences = []
    for folder in app.store.clusters():
        record = readable_record(folder)
        if record is None or folder == planned or record.id in listed or accounts.knows(record):
            continue
        target = record.target
        ends = read_time(ending_of(folder, target.provider))
        if ends is None or ends > now:
            sentences.append(
                f"The cluster {folder.name} is at {target.provider} {target.region}, in the account "
                f"{target.account or 'that made it'}, which was not asked: set up its credentials."
            )
    return tuple(sentences)


def existing_costs(
    accounts: Accounts, plan: Plan, cluster_id: str | None, not_asked: tuple[str, ...] = ()
) -> ExistingCosts:
    """Return the costs of all but the plan's cluster. `cluster_id`: its id, if it exists.

    `not_asked`: sentences on clusters that no place has.
    """
    clusters = tuple(cluster for cluster in accounts.clusters if cluster.id != cluster_id)
    networks = [
        region.contents.network_hourly_usd
        for region in accounts.regions
        # The plan's network is in its own price.
        if not plan.price.network_usd
        or region.cloud.target.region != plan.region
        or plan.account not in (None, region.cloud.target.account)
    ]
    silent = [f"{str(place).removesuffix('.')}." for place in accounts.problems]
    if len(silent) > MAX_NAMED:
        silent[MAX_NAMED:] = [f"{len(silent) - MAX_NAMED} other places did not answer."]
    priceless = [_price_unknown(cluster) for cluster in clusters if cluster.most_hourly_usd is None]
    return ExistingCosts(
        clusters=clusters,
        network_hourly_usd=sum(networks),
        unknown=tuple(dict.fromkeys((*silent, *not_asked, *priceless))),
    )


def most_hourly_usd(plan: Plan, *, elastic: bool) -> float | None:
    """Return the highest price of the plan's cluster. `None`: not known. `elastic`: its runs start machines."""
    usd = plan.price.most_hourly_usd
    if not elastic or usd is None:
        return usd
    return None if plan.run_hourly_usd is None else max(usd, plan.run_hourly_usd)


def check_hourly(
    limit_usd: float, plan_usd: float | None, plan: Plan, existing: ExistingCosts, source: str
) -> Check:
    """Return the check of the hourly limit.

    `plan_usd`: highest price of the plan's cluster. `None`: not known. `source`: the file with the limit.
    """
    limit = f"{HOURLY} {limit_usd:g} in {source}"
    if plan_usd is None or existing.unknown:
        return _not_known(limit, HOURLY, plan_usd, plan, existing.unknown)
    total_usd = plan_usd + existing.most_hourly_usd
    if total_usd <= limit_usd * (1 + 1e-9):
        return Check(note=f"{limit}: {dollars(total_usd)} an hour with this cluster")
    rest = f" and everything else {dollars(existing.most_hourly_usd)}: {dollars(total_usd)}"
    return Check(
        problem=f"The cluster {plan.spec.cluster} costs {dollars(plan_usd)} an hour"
        f"{rest if existing.most_hourly_usd else ''}, more than {limit}.",
        advice=_advice(HOURLY, total_usd) + existing.listing(),
    )


def check_month(
    limit_usd: float,
    plan_usd: float | None,
    plan: Plan,
    existing: ExistingCosts,
    spent: tuple[ClusterSpans, ...],
    source: str,
    *,
    now: datetime,
    end: datetime,
) -> Check:
    """Return the check of the limit of the month that ends at `end`. `spent`: times of clusters since its begin.

    The other arguments are as for `check_hourly`.
    """
    limit = f"{MONTHLY} {limit_usd:g} in {source}"
    open_costs = [f"{clean(cost.last.cluster)}: {cost.open}" for cost in spent if cost.open]
    unknown = (*existing.unknown, *open_costs)
    if plan_usd is None or unknown:
        return _not_known(limit, MONTHLY, plan_usd, plan, unknown)
    ends_at = {cost.last.id: cost.last.ends_at for cost in spent}
    spent_usd = sum(ledger.total_usd(cost.spans)[0] for cost in spent)
    going_usd = existing.network_hourly_usd * _hours(end - now) + sum(
        (cluster.most_hourly_usd or 0.0) * _hours(min(_end_of(cluster, ends_at, now, end), end) - now)
        for cluster in existing.clusters
    )
    left_s = (end - now).total_seconds()
    lives_s = left_s if plan.until_s is None or not plan.ttl_ends_bill else min(plan.until_s, left_s)
    rest_usd = (plan.price.network_usd or 0.0) + (plan.price.control_plane_usd or 0.0)
    coming_usd = (plan_usd * max(lives_s, plan.least_billed_s) + rest_usd * (left_s - lives_s)) / 3600
    total_usd = spent_usd + going_usd + coming_usd
    if total_usd <= limit_usd * (1 + 1e-9):
        return Check(note=f"{limit}: at most {dollars(total_usd)} this month with this cluster")
    ttl = "" if plan.until_s is not None or not plan.ttl_ends_bill else "Add --ttl, or a shorter one. "
    return Check(
        problem=f"This month may cost {dollars(total_usd)}, more than {limit}: {dollars(spent_usd)} until now, "
        f"{dollars(going_usd)} by other clusters until they end, and {dollars(coming_usd)} by the cluster "
        f"{plan.spec.cluster} until it ends, or the month does.",
        advice=ttl + _advice(MONTHLY, total_usd) + existing.listing(),
    )


def _end_of(
    cluster: FoundCluster, ends_at: dict[str, str | None], now: datetime, month_end: datetime
) -> datetime:
    """Return when the bill of an existing cluster ends for sure, or else the end of the month."""
    ends = read_time(ends_at.get(cluster.id, cluster.ends_at))
    if ends is None or ends <= now:  # it outlived its end
        return month_end
    return max(ends, read_time(cluster.expires_at) or ends)


def _hours(time: timedelta) -> float:
    return max(0.0, time.total_seconds() / 3600)


def _not_known(limit: str, key: str, plan_usd: float | None, plan: Plan, unknown: tuple[str, ...]) -> Check:
    """Return the check of a limit that can't be shown to hold: nothing unknown counts as zero."""
    if plan_usd is None:
        command = refresh_command(plan.provider, plan.region)
        sentence = f"The price of the cluster {plan.spec.cluster} is not known: `{command}` asks for prices."
        unknown = (sentence, *unknown)
    return Check(
        problem=f"{limit} can't be shown to hold. {' '.join(unknown)}",
        advice=f"Try again once that is mended, or leave the limit out: `gpuctl config unset {key}`.",
    )


def _advice(key: str, needed_usd: float) -> str:
    needed = f"{math.ceil(round(needed_usd * 100, 6)) / 100:.2f}".removesuffix(".00")
    return (
        "Ask for fewer machines or a cheaper shape, end a cluster (`gpuctl down --cluster NAME`, or `gpuctl reap ID` "
        f"for one of another computer), or raise the limit: `gpuctl config set {key} {needed}`."
    )


def _price_unknown(cluster: FoundCluster) -> str:
    command = refresh_command(cluster.provider, cluster.region)
    shapes = first_of(cluster.shapes, MAX_NAMED)
    return f"The price of {shapes} in {cluster.region} is not known: `{command}` asks for it."
