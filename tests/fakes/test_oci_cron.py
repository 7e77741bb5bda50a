"""Cron expressions of OCI's autoscaling: which are refused, and when the others act."""

from datetime import UTC, datetime

import pytest

from tests.fakes.oci.cron import parse
from tests.fakes.oci.errors import ApiError

NOW = datetime(2026, 11, 27, 10, 30, 20, tzinfo=UTC)


def test_fixed_date_acts_once():
    cron = parse("0 45 10 27 11 ? 2026")
    end = datetime(2026, 11, 27, 10, 45, tzinfo=UTC)
    assert cron.next_after(NOW) == end
    assert cron.next_after(end) is None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 12 ? * *", (2026, 11, 27, 12, 0)),
        ("0 31 10 * * ?", (2026, 11, 27, 10, 31)),
        ("0 30 10 * * ?", (2026, 11, 28, 10, 30)),
        ("0 15 10 ? * MON-FRI", (2026, 11, 30, 10, 15)),
        ("0 15 10 ? * 1", (2026, 11, 29, 10, 15)),
        ("0 0/20 * * * ?", (2026, 11, 27, 10, 40)),
        ("0 0 0 1 jan ? *", (2027, 1, 1, 0, 0)),
        ("0 0 0 29 2 ?", (2028, 2, 29, 0, 0)),
        ("0 5,35 10 27 11 ? 2026-2027", (2026, 11, 27, 10, 35)),
    ],
)
def test_next_time_follows_the_fields(expression, expected):
    assert parse(expression).next_after(NOW) == datetime(*expected, tzinfo=UTC)


@pytest.mark.parametrize("expression", ["0 29 10 27 11 ? 2026", "0 30 10 27 11 ? 2026", "0 0 0 31 4 ? 2030"])
def test_date_in_the_past_or_outside_the_calendar_never_acts(expression):
    assert parse(expression).next_after(NOW) is None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "0 fields"),
        ("0 0 12 * *", "5 fields"),
        ("0 0 12 * * ? 2027 1", "8 fields"),
        ("* 0 12 * * ?", "the second is '*'"),
        ("30 0 12 * * ?", "the second is '30'"),
        ("0 60 12 * * ?", "0 to 59"),
        ("0 0 24 * * ?", "0 to 23"),
        ("0 0 0 0 1 ?", "1 to 31"),
        ("0 0 0 32 1 ?", "1 to 31"),
        ("0 0 0 1 13 ?", "1 to 12"),
        ("0 0 0 1 JANUARY ?", "1 to 12"),
        ("0 0 0 ? 1 8", "1 to 7"),
        ("0 0 0 1 1 ? 1969", "1970 to 2099"),
        ("0 0 0 1 1 ? 26", "1970 to 2099"),
        ("0 0 0 * * *", "exactly one of"),
        ("0 0 0 ? * ?", "exactly one of"),
        ("0 ? 0 1 * ?", "the minute can't be ?"),
        ("0 0 5-3 1 * ?", "the hour is '5-3'"),
        ("0 0/0 0 1 * ?", "the minute is '0/0'"),
        ("0 -1 0 1 * ?", "the minute is '-1'"),
        ("0 1, 0 1 * ?", "the minute is '1,'"),
    ],
)
def test_invalid_expression_is_refused(expression, words):
    with pytest.raises(ApiError) as caught:
        parse(expression)
    assert (caught.value.status, caught.value.code) == (400, "InvalidParameter")
    assert words in caught.value.message
