from datetime import UTC, datetime, timedelta, timezone

import pytest

from inventories.errors import InvalidInput
from inventories.specs.checks import parse_duration_s
from provision.errors import RefusedPlan
from provision.pricing.spending import cost_so_far, expires_at, refuse_over_max_cost
from provision.records import Target

OCI = Target(provider="oci", region="us-ashburn-1")
NOW = datetime(2026, 7, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def refusal(hourly_usd, ttl_s, max_cost_usd, target=OCI) -> str:
    with pytest.raises(RefusedPlan) as caught:
        refuse_over_max_cost(hourly_usd, ttl_s, max_cost_usd, target)
    return str(caught.value)


def test_expires_at_returns_utc_and_refuses_year_10000():
    assert expires_at(NOW, 14_400) == "2026-07-01T16:00:00+00:00"
    assert expires_at(NOW, 0.5) == "2026-07-01T12:00:01+00:00"
    assert expires_at(NOW.astimezone(timezone(timedelta(hours=9))), 60) == "2026-07-01T12:01:00+00:00"

    with pytest.raises(InvalidInput, match="--ttl 999999999d can't be used: that is after the year 9999"):
        expires_at(NOW, 999_999_999 * 86_400)


@pytest.mark.parametrize(
    ("hourly_usd", "ttl_s", "max_cost_usd"),
    [
        (8.0, 14_400, 32.0),
        (8.0, None, None),
        (None, None, None),
        (0.0, None, 1.0),
        (0.1, 3600 * 3, 0.3),
    ],
)
def test_max_cost_accepts_plans_within_the_limit(hourly_usd, ttl_s, max_cost_usd):
    refuse_over_max_cost(hourly_usd, ttl_s, max_cost_usd, OCI)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (OCI, "--provider oci"),
        (Target(provider="aws", region="eu-west-1"), "--provider aws --region eu-west-1"),
        (Target(provider="aws"), "--provider aws --region us-east-1"),
    ],
)
def test_max_cost_refuses_unknown_prices_naming_refresh_prices(target, options):
    assert refusal(None, 3600, 50, target) == (
        "--max-cost 50 can't be kept: what these machines can cost is not known. Nothing was created. "
        f"Ask for the prices with `gpuctl shapes --refresh-prices {options}`, or leave --max-cost out."
    )


def test_max_cost_without_ttl_is_refused_with_a_suggested_ttl():
    assert refusal(8.0, None, 20) == (
        "--max-cost 20 can't be kept without a time limit. Nothing was created. At $8.00 an hour the money "
        "lasts for 2h30m: add --ttl 2h30m."
    )
    assert refusal(600.0, None, 1).endswith("At $600.00 an hour it does not last until they have booted.")


def test_max_cost_refuses_a_dearer_plan_with_the_amounts():
    assert refusal(11.344, 14_400, 40) == (
        "4h at $11.34 an hour cost $45.38, more than --max-cost 40. Nothing was created. "
        "Ask for fewer machines, a cheaper shape, --ttl 3h31m or --max-cost 45.38."
    )
    assert refusal(600.0, 30, 1) == (
        "30s at $600.00 an hour cost $5.00, more than --max-cost 1. Nothing was created. "
        "Ask for fewer machines, a cheaper shape or --max-cost 5."
    )


@pytest.mark.parametrize("hourly_usd", [0.526, 3.912, 13.35, 113.93, 411.44])
def test_max_cost_accepts_the_limits_it_suggests(hourly_usd):
    advised = refusal(hourly_usd, None, 100.0).rsplit(" ", 1)[1].rstrip(".")
    refuse_over_max_cost(hourly_usd, parse_duration_s(advised), 100.0, OCI)
    dearer = float(refusal(hourly_usd, 10**6, 100.0).rsplit(" ", 1)[1].rstrip("."))
    refuse_over_max_cost(hourly_usd, 10**6, dearer, OCI)


def test_cost_so_far_adds_the_hours_of_each_machine():
    early, late = "2026-07-01T10:30:00+00:00", "2026-07-01T11:30:00+00:00"
    assert cost_so_far(4.0, [early, early], NOW) == pytest.approx(12.0, abs=0.001)
    assert cost_so_far(4.0, [early, late], NOW) == pytest.approx(8.0, abs=0.001), "one came later"
    assert cost_so_far(4.0, ["2026-07-01T10:30:00"], NOW) == pytest.approx(6.0, abs=0.001)
    assert cost_so_far(8.0, ["2026-07-02T10:30:00+00:00"], NOW) == 0.0, "a clock that was set back"
    assert cost_so_far(8.0, [], NOW) == 0.0
    assert cost_so_far(None, [early], NOW) is None
    assert cost_so_far(4.0, [early, "yesterday"], NOW) is None


def test_max_cost_counts_the_shortest_time_that_is_billed():
    with pytest.raises(
        RefusedPlan, match=r"1h, the least that is billed, at \$160\.00 an hour cost \$160\.00"
    ):
        refuse_over_max_cost(160.0, 600.0, 30.0, OCI, 3600.0)
    refuse_over_max_cost(160.0, 600.0, 160.0, OCI, 3600.0)


def test_cost_so_far_counts_the_shortest_time_that_is_billed():
    assert cost_so_far(80.0, ["2026-07-01T11:59:50+00:00"], NOW, 3600.0) == pytest.approx(80.0)
