"""The prices of clusters over time, and the money that follows from them."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inventories.errors import CorruptFile
from provision.pricing import ledger
from provision.pricing.ledger import Rate, by_day, end_of, month_of, spans, total_usd

BEGAN = datetime(2026, 11, 20, 22, tzinfo=UTC)
RATE = Rate(
    cluster="one",
    id="0a1b",
    provider="aws",
    region="us-east-1",
    account="1234",
    since=BEGAN.isoformat(),
    machines=2,
    hourly_usd=6.0,
)


def after(hours: float) -> datetime:
    return BEGAN + timedelta(hours=hours)


def usd(*rates: Rate, until: datetime) -> tuple[float, bool]:
    return total_usd(spans(rates, until))


def test_a_rate_holds_until_the_next_one_and_the_last_one_until_now() -> None:
    grown = replace(RATE, since=after(2).isoformat(), machines=4, hourly_usd=12.0)
    assert usd(RATE, until=after(3)) == (18.0, True)
    assert usd(RATE, grown, until=after(3)) == (24.0, True)
    assert usd(RATE, grown, end_of(grown, after(3)), until=after(9)) == (24.0, True)


def test_an_end_by_the_cloud_ends_all_but_the_rest() -> None:
    timed = replace(RATE, ends_at=after(1).isoformat())
    assert usd(timed, until=after(5)) == (6.0, True)
    assert usd(replace(timed, rest_hourly_usd=0.1), until=after(5)) == (6.4, True)
    assert usd(timed, end_of(timed, after(0.5)), until=after(5)) == (3.0, True)


def test_the_shortest_billed_time_is_paid_and_an_unknown_price_is_no_zero() -> None:
    metal = replace(RATE, least_s=3600.0)
    assert usd(metal, end_of(metal, after(0.1)), until=after(5)) == (6.0, True)
    unknown = replace(RATE, hourly_usd=None)
    assert usd(unknown, until=after(1)) == (0.0, False)
    assert usd(RATE, replace(unknown, since=after(1).isoformat()), until=after(2)) == (6.0, False)


def test_the_shortest_billed_time_is_paid_once_a_machine() -> None:
    metal = replace(RATE, hourly_usd=20.0, least_s=3600.0)
    shrunk = replace(metal, since=after(1 / 6).isoformat(), machines=1, hourly_usd=10.0)
    assert usd(metal, shrunk, end_of(shrunk, after(1 / 3)), until=after(5)) == (20.0, True)
    grown = replace(metal, since=after(5).isoformat(), machines=3, hourly_usd=30.0)
    # Two machines for 5 h 10 min, and an hour of the third.
    assert usd(metal, grown, end_of(grown, after(31 / 6)), until=after(9))[0] == pytest.approx(
        113.33, abs=0.01
    )


def test_days_and_months_are_utc() -> None:
    assert by_day(spans([RATE], after(4))) == {"2026-11-20": 12.0, "2026-11-21": 12.0}
    assert month_of(datetime(2026, 12, 31, 23, tzinfo=UTC)) == (
        datetime(2026, 12, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )
    (span,) = spans([RATE], after(4))
    part = span.within(after(3), after(9))
    assert part is not None
    assert part.usd == pytest.approx(6.0)
    assert span.within(after(5), after(9)) is None


@pytest.mark.parametrize("since", ["yesterday", 5])
def test_a_line_with_a_wrong_time_is_named(tmp_path: Path, since: object) -> None:
    ledger.record(tmp_path, RATE)
    ledger.journal(tmp_path).append("price", **asdict(RATE) | {"since": since})
    with pytest.raises(CorruptFile, match="line 2 has no value, or a wrong one"):
        ledger.rates(tmp_path)


def test_the_file_keeps_a_rate_once(tmp_path: Path) -> None:
    ledger.record(tmp_path, RATE)
    ledger.record(tmp_path, replace(RATE, since=after(1).isoformat()))
    ledger.record(tmp_path, end_of(RATE, after(2)))
    ledger.record(tmp_path, end_of(RATE, after(3)))
    known = ledger.rates(tmp_path)["0a1b"]
    assert [(rate.hourly_usd, rate.ended) for rate in known] == [(6.0, False), (0.0, True)]
    assert (tmp_path / ledger.FILE_NAME).stat().st_mode & 0o777 == 0o600
