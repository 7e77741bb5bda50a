"""`cost`: the times of clusters from the ledger and from tags, and the gaps in both."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from support import a_machine, an_inventory

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.workflow.clusters.accounts import Accounts
from gpuctl.workflow.clusters.cost import record_price, record_removal, since_of, spans_of_clusters
from gpuctl.workflow.clusters.ends import warning
from provision.errors import Denied, Unclear
from provision.pricing import ledger
from provision.pricing.ledger import Rate, total_usd
from provision.pricing.plan_price import PlanPrice
from provision.records import CloudCluster, EndGuard, Target
from provision.rented.interface import Cloud
from provision.rented.scan import Failed, Scanned
from provision.rented.state import CloudState
from provision.rented.tagged_clusters import FoundCluster, RegionContents

NOW = datetime.now(UTC).replace(microsecond=0)
BEGAN = NOW - timedelta(hours=2)
MONTH = NOW - timedelta(days=30)
TARGET = Target(provider="aws", region="us-east-1", account="1234")
RECORD = CloudCluster(
    name="default",
    id="0a1b",
    owner="ada@desk",
    created_at=BEGAN.isoformat(),
    target=TARGET,
    shape="g5.12xlarge",
)
RATE = Rate(
    cluster="default",
    id="0a1b",
    provider="aws",
    region="us-east-1",
    account="1234",
    since=BEGAN.isoformat(),
    machines=1,
    hourly_usd=6.0,
)
FOUND = FoundCluster(
    name="theirs",
    id="2c3d",
    owner="bob@desk",
    provider="aws",
    region="us-east-1",
    machines=("i-1",),
    resources=(),
    since=BEGAN.isoformat(),
    expires_at=None,
    hourly_usd=None,
    most_hourly_usd=6.0,
)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path))
    return App()


def accounts(*clusters: FoundCluster, silent: bool = False) -> Accounts:
    """Return accounts in which no region was scanned; `silent`: one did not answer."""
    failed = (Failed(target=TARGET, error=Unclear("No answer.")),) if silent else ()
    return Accounts(regions=(), clusters=clusters, problems=failed)


MINE = replace(FOUND, name="default", id="0a1b", hourly_usd=6.0)


def answered(*clusters: FoundCluster, closed: bool = False) -> Accounts:
    """Return accounts in which the region was scanned; `closed`: a part of it may not be listed."""
    region = Scanned(
        cloud=cast("Cloud", SimpleNamespace(target=TARGET)), contents=RegionContents(clusters=(), network=())
    )
    denied = (Failed(target=replace(TARGET, compartment="other"), error=Denied("No."), passed_over=True),)
    return Accounts(regions=(region,), clusters=clusters, problems=(), passed_over=denied if closed else ())


def test_a_missing_cluster_counts_until_now_and_a_later_scan_finds_it_again(app: App) -> None:
    ledger.record(app.store.home, RATE)
    rates = ledger.rates(app.store.home)
    (missing,) = spans_of_clusters(rates, answered(), MONTH, NOW)
    assert (missing.running, missing.open, total_usd(missing.spans)[0]) == (False, "", 12.0)
    assert missing.unknown.startswith("It ended at an unknown time, and counts until now")
    assert ledger.rates(app.store.home) == rates
    (closed,) = spans_of_clusters(rates, answered(closed=True), MONTH, NOW)
    assert (closed.running, closed.open[:23]) == (True, "Its account was not ask")
    (present,) = spans_of_clusters(rates, answered(MINE), MONTH, NOW)
    assert (present.running, present.open, present.unknown) == (True, "", "")


def test_an_existing_cluster_has_no_end_before_now() -> None:
    early = BEGAN + timedelta(hours=1)
    false_end = ledger.end_of(RATE, early, "It ended.")
    for known in ([RATE, false_end], [replace(RATE, ends_at=early.isoformat())]):
        (cost,) = spans_of_clusters({"0a1b": known}, answered(MINE), MONTH, NOW)
        assert (total_usd(cost.spans), cost.unknown, cost.last.ends_at) == ((12.0, True), "", None)
    # Between runs it had no machines: that is no false end.
    restarted = replace(MINE, since=(NOW - timedelta(minutes=30)).isoformat())
    (cost,) = spans_of_clusters({"0a1b": [RATE, false_end]}, answered(restarted), MONTH, NOW)
    assert total_usd(cost.spans) == (9.0, True)


def test_other_machines_than_the_ledgers_are_a_gap_and_count_with_the_higher_price() -> None:
    later = (NOW - timedelta(hours=1)).isoformat()
    launched = ((6.0, BEGAN.isoformat()), (6.0, later))
    grown = replace(MINE, machines=("i-1", "i-2"), most_hourly_usd=12.1, launched=launched)
    (cost,) = spans_of_clusters({"0a1b": [RATE]}, answered(grown), MONTH, NOW)
    assert (total_usd(cost.spans), cost.open) == ((18.1, True), "")
    assert cost.unknown.startswith("It has more machines than the ledger")
    (fewer,) = spans_of_clusters({"0a1b": [replace(RATE, machines=2)]}, answered(MINE), MONTH, NOW)
    assert (total_usd(fewer.spans)[0], fewer.unknown[:21]) == (12.0, "It has fewer machines")


def test_a_cluster_of_others_counts_by_its_tags_and_a_spot_price_is_a_gap() -> None:
    (cost,) = spans_of_clusters({}, accounts(FOUND), MONTH, NOW)
    assert (cost.running, total_usd(cost.spans)) == (True, (0.0, False))
    assert cost.open == "The price of its machines is not known for all of the time."
    (known,) = spans_of_clusters({}, accounts(replace(FOUND, hourly_usd=6.0)), MONTH, NOW)
    assert (total_usd(known.spans), known.open, known.unknown) == ((12.0, True), "", "")


def test_a_cluster_whose_account_was_not_scanned_counts_until_now(app: App) -> None:
    ledger.record(app.store.home, RATE)
    for scan in (accounts(), accounts(silent=True)):
        (cost,) = spans_of_clusters(ledger.rates(app.store.home), scan, MONTH, NOW)
        assert (total_usd(cost.spans), cost.running) == ((12.0, True), True)
        assert cost.open == "Its account was not asked, or did not answer in full: it counts until now."
    assert len(ledger.rates(app.store.home)["0a1b"]) == 1


def test_up_and_down_write_the_ledger_which_outlives_the_files(app: App) -> None:
    folder = app.store.cluster("default")
    CloudState(folder).save(RECORD)
    machine = a_machine(launched_at=BEGAN.isoformat())
    inventory = an_inventory(provider="aws", region="us-east-1", machines=(machine,))
    folder.save(inventory)
    record_price(app, folder, inventory, PlanPrice(machines_usd=6.0))
    record_price(app, folder, inventory, PlanPrice(machines_usd=6.0))
    record_removal(app, folder, inventory.machines)
    folder.remove()
    rates = ledger.rates(app.store.home)["0a1b"]
    assert [(rate.machines, rate.hourly_usd) for rate in rates] == [(1, 6.0), (0, 0.0)]
    (cost,) = spans_of_clusters({"0a1b": rates}, accounts(), MONTH, NOW + timedelta(days=1))
    hours = (datetime.now(UTC) - BEGAN).total_seconds() / 3600
    assert total_usd(cost.spans)[0] == pytest.approx(6.0 * hours, rel=0.02)
    assert (cost.unknown, cost.open) == ("", "")


def test_machines_that_vanished_before_down_are_a_gap(app: App) -> None:
    folder = app.store.cluster("default")
    CloudState(folder).save(RECORD)
    ledger.record(app.store.home, RATE)
    record_removal(app, folder, ())
    (cost,) = spans_of_clusters(ledger.rates(app.store.home), accounts(), MONTH, NOW)
    assert cost.unknown == "Its machines had ended before `gpuctl down`, at an unknown time."


def test_machines_of_an_interrupted_growth_count_from_their_launch(app: App) -> None:
    folder = app.store.cluster("default")
    CloudState(folder).save(RECORD)
    ledger.record(app.store.home, RATE)
    later = (BEGAN + timedelta(hours=1)).isoformat()
    machines = [a_machine(launched_at=at) for at in (BEGAN.isoformat(), later, later, later)]
    record_removal(app, folder, machines)
    _, grown, end = ledger.rates(app.store.home)["0a1b"]
    assert (grown.since, grown.machines, grown.hourly_usd, end.ended) == (later, 4, 24.0, True)
    assert grown.unknown.startswith("An interrupted `up` made more machines")


def test_a_torn_ledger_is_reported_and_stops_no_removal(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    folder = app.store.cluster("default")
    CloudState(folder).save(RECORD)
    (app.store.home / ledger.FILE_NAME).write_text('{"event": "price"}\n')
    record_removal(app, folder, ())
    assert "line 1 has no value, or a wrong one. Remove that line." in capsys.readouterr().err


def test_since_is_a_day_or_a_time() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert since_of(None, now) == datetime(2026, 11, 1, tzinfo=UTC)
    assert since_of("2026-10-05", now) == datetime(2026, 10, 5, tzinfo=UTC)
    assert since_of("7d", now) == datetime(2026, 11, 14, 12, tzinfo=UTC)
    for wrong in ("yesterday", "2026-13-01", "99999999d"):
        with pytest.raises(Usage, match="write a day such as 2026-11-01, or 7d"):
            since_of(wrong, now)


def test_idle_without_ttl_warns_where_the_cloud_ends_no_bill(app: App) -> None:
    folder = app.store.cluster("default")
    oci = replace(RECORD, target=Target(provider="oci", region="eu-frankfurt-1"), idle_s=1800.0)
    CloudState(folder).save(oci)
    idle = EndGuard(guard="idle", at=None, ends_bill=False, armed=True)
    text = warning(folder, (idle,), 8.0)
    assert "only `gpuctl reap --idle` ends these machines and their bill ($192.00 a day)" in text
    assert "reap --idle --yes --provider oci --region eu-frankfurt-1" in text
    assert warning(folder, (replace(idle, ends_bill=True),), 8.0) == ""
    assert warning(folder, (), 8.0) == ""
