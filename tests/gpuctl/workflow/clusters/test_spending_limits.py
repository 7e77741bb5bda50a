"""Limits on the money of all clusters: sums, and what is not known."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuctl.app import App
from gpuctl.workflow.clusters.accounts import Accounts
from gpuctl.workflow.clusters.cost import ClusterSpans
from gpuctl.workflow.clusters.spending_limits import (
    ExistingCosts,
    check_hourly,
    check_month,
    existing_costs,
    most_hourly_usd,
    not_asked,
)
from inventories.specs.spec import Spec
from provision.errors import Denied
from provision.pricing.ledger import Rate, Span
from provision.pricing.plan_price import PlanPrice
from provision.provider import Plan, PlannedMachine
from provision.records import CloudCluster, Target
from provision.rented.interface import Cloud
from provision.rented.scan import Failed, Scanned
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import FoundCluster, RegionContents

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


def test_a_cluster_here_in_an_account_that_was_not_asked_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    app = App()
    target = Target(provider="aws", region="us-east-1", account="1234", compartment="mine")
    for number, name in enumerate(("own", "other")):
        folder = app.store.cluster(name)
        folder.journal.append("up", provider="aws")
        CloudState(folder).save(
            CloudCluster(
                name=name,
                id=str(number),
                owner="",
                created_at="2026-11-20",
                target=target,
                shape="g5.12xlarge",
            )
        )
    empty = Accounts(regions=(), clusters=(), problems=())
    own = app.store.cluster("own")
    (sentence,) = not_asked(app, empty, own)
    assert sentence.startswith(
        "The cluster other is at aws us-east-1, in the account 1234, which was not asked"
    )
    assert existing_costs(empty, plan(), None, (sentence,)).unknown == (sentence,)
    assert not_asked(app, replace(empty, clusters=(replace(FOUND, id="1"),)), own) == ()
    closed = Failed(target=replace(target, compartment="closed"), error=Denied("No."), passed_over=True)
    listed = Accounts(regions=(region_at(target),), clusters=(), problems=(), passed_over=(closed,))
    assert not_asked(app, listed, own) == ()


def region_at(target: Target, network_usd: float = 0.0) -> Scanned:
    contents = RegionContents(clusters=(), network=(), network_hourly_usd=network_usd)
    return Scanned(cloud=cast("Cloud", SimpleNamespace(target=target)), contents=contents)


def test_the_network_of_another_account_in_the_same_region_counts() -> None:
    here = Target(provider="aws", region="us-east-1", account="1234")
    regions = (region_at(here, 0.05), region_at(replace(here, account="5678"), 0.07))
    accounts = Accounts(regions=regions, clusters=(), problems=())
    private = plan(price=PlanPrice(machines_usd=5.0, network_usd=0.05), account="1234")
    assert existing_costs(accounts, private, None).network_hourly_usd == 0.07
