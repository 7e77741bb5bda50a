"""Limits on the money of all clusters: sums, and what is not known."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuctl.workflow.clusters.cost import ClusterSpans
from gpuctl.workflow.clusters.spending_limits import ExistingCosts, check_hourly, check_month, most_hourly_usd
from inventories.specs.spec import Spec
from provision.pricing.ledger import Rate, Span
from provision.pricing.plan_price import PlanPrice
from provision.provider import Plan, PlannedMachine
from provision.rented.tagged_clusters import FoundCluster

NOW = datetime(2026, 11, 21, tzinfo=UTC)
END = datetime(2026, 12, 1, tzinfo=UTC)
SOURCE = "~/.gpuctl/config.yaml"
FOUND = FoundCluster(
    name="theirs",
    id="2c3d",
    owner="bob@desk",
    provider="aws",
    region="us-west-2",
    machines=("i-1",),
    resources=(),
    since="2026-11-20T00:00:00+00:00",
    expires_at=None,
    hourly_usd=3.0,
    most_hourly_usd=3.0,
    shapes=("g5.12xlarge",),
)
EXISTING = ExistingCosts(clusters=(FOUND,), network_hourly_usd=0.05)


def plan(**fields: Any) -> Plan:
    machine = PlannedMachine(name="default-0", rank=0)
    price = PlanPrice(machines_usd=5.0)
    known = {"spec": Spec(), "provider": "aws", "region": "us-east-1", "price": price, "free": False}
    return Plan(**known | {"create": (machine,), "keep": (), "requests": ()} | fields)  # type: ignore[arg-type]


def test_the_hourly_limit_counts_everything_in_the_accounts() -> None:
    assert check_hourly(8.05, 5.0, plan(), EXISTING, SOURCE).note == (
        "max_hourly_usd 8.05 in ~/.gpuctl/config.yaml: $8.05 an hour with this cluster"
    )
    over = check_hourly(8.0, 5.0, plan(), EXISTING, SOURCE)
    assert over.problem == (
        "The cluster default costs $5.00 an hour and everything else $3.05: $8.05, more than max_hourly_usd 8 in "
        "~/.gpuctl/config.yaml."
    )
    assert "`gpuctl config set max_hourly_usd 8.05`" in over.advice
    assert over.advice.endswith(
        " In the accounts now:\n"
        "  theirs: aws us-west-2, 1 machine, $3.00 an hour, without a time limit, of bob@desk, id 2c3d\n"
        "  shared networks: $0.05 an hour"
    )
    alone = check_hourly(4.0, 5.0, plan(), ExistingCosts(), SOURCE)
    assert alone.problem.startswith("The cluster default costs $5.00 an hour, more than max_hourly_usd 4 in")


@pytest.mark.parametrize("limit", [check_hourly, check_month])
def test_nothing_unknown_counts_as_zero(limit: Any) -> None:
    more = {} if limit is check_hourly else {"spent": (), "now": NOW, "end": END}
    silent = replace(EXISTING, unknown=("aws us-west-2: no answer.",))
    check = limit(1e6, 5.0, plan(), silent, source=SOURCE, **more)
    assert "can't be shown to hold. aws us-west-2: no answer." in check.problem
    priceless = limit(1e6, None, plan(), EXISTING, source=SOURCE, **more)
    assert "gpuctl shapes --refresh-prices --provider aws --region us-east-1" in priceless.problem
    assert "gpuctl config unset max_" in priceless.advice


def test_the_months_limit_adds_what_is_spent_and_what_will_be() -> None:
    rate = Rate(cluster="mine", id="0a1b", provider="aws", region=None, since="", machines=1, hourly_usd=1.0)
    spent = ClusterSpans(
        last=rate, spans=(Span(begin=NOW - timedelta(hours=10), end=NOW, hourly_usd=1.0),), running=False
    )
    sure = {"source": SOURCE, "now": NOW, "end": END}
    timed = plan(until_s=4 * 3600.0)
    # $10 until now, $3.05 an hour by others for ten days, $20 by the plan.
    assert "at most $762.00 this month" in check_month(762.0, 5.0, timed, EXISTING, (spent,), **sure).note
    over = check_month(761.0, 5.0, timed, EXISTING, (spent,), **sure)
    assert (
        "$10.00 until now, $732.00 by other clusters until they end, and $20.00 by the cluster default"
        in over.problem
    )
    assert not over.advice.startswith("Add --ttl")
    assert check_month(9.0, 5.0, plan(), ExistingCosts(), (), **sure).advice.startswith("Add --ttl")
    ends = replace(
        EXISTING, clusters=(replace(FOUND, expires_at="2026-11-21T02:00:00+00:00"),), network_hourly_usd=0.0
    )
    assert "at most $36.00" in check_month(100.0, 5.0, timed, ends, (spent,), **sure).note
    past = replace(EXISTING, clusters=(replace(FOUND, expires_at="2026-11-20T12:00:00+00:00"),))
    assert "at most $762.00" in check_month(762.0, 5.0, timed, past, (spent,), **sure).note
    theirs = replace(spent, last=replace(rate, id="2c3d", ends_at="2026-11-21T01:00:00+00:00"))
    # $10 until now, $3 an hour for two hours by the later end, $20 by the plan.
    assert "at most $36.00" in check_month(100.0, 5.0, timed, ends, (theirs,), **sure).note
    open_price = replace(spent, open="The price is not known.")
    assert (
        "mine: The price is not known."
        in check_month(1e6, 5.0, timed, EXISTING, (open_price,), **sure).problem
    )


def test_a_cluster_whose_runs_start_machines_counts_with_all_of_them() -> None:
    elastic = plan(run_hourly_usd=20.0)
    assert most_hourly_usd(elastic, elastic=True) == 20.0
    assert most_hourly_usd(plan(), elastic=True) is None
    assert most_hourly_usd(plan(), elastic=False) == 5.0
