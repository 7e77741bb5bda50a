"""Quartz cron expressions, as schedules of OCI's autoscaling have them: checked strictly, and when they act next.

The fields and their order: the SDK's `CronExecutionSchedule`, which refers to Quartz and allows only 0 as second.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.fakes.oci.errors import invalid

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
LAST_YEAR = 2099
_PART = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\d+))?$")


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of an expression: its range, and the names of its values."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_FIELDS = (
    Field(name="minute", low=0, high=59),
    Field(name="hour", low=0, high=23),
    Field(name="day of month", low=1, high=31),
    Field(name="month", low=1, high=12, names=MONTHS),
    Field(name="day of week", low=1, high=7, names=WEEKDAYS),
    Field(name="year", low=1970, high=LAST_YEAR),
)


@dataclass(frozen=True, kw_only=True)
class Cron:
    """A checked expression. A question mark as `days` or `weekdays` is `None`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None
    months: frozenset[int]
    weekdays: frozenset[int] | None
    years: frozenset[int]

    def next_after(self, moment: datetime) -> datetime | None:
        """Compute the first time after a moment.

        Returns:
            The time, UTC; `None` if the expression never acts again.
        """
        minute = moment.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        return next((time for time in self._times(minute) if time >= minute), None)

    def _times(self, start: datetime) -> Iterator[datetime]:
        day = start.replace(hour=0, minute=0)
        while day.year <= LAST_YEAR:
            if self._acts_on(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        yield day.replace(hour=hour, minute=minute)
            day += timedelta(days=1)

    def _acts_on(self, day: datetime) -> bool:
        return (
            day.year in self.years
            and day.month in self.months
            and (self.days is None or day.day in self.days)
            and (self.weekdays is None or day.isoweekday() % 7 + 1 in self.weekdays)
        )


def parse(expression: str) -> Cron:
    """Return a checked expression. Raises ApiError, InvalidParameter."""
    texts = expression.split()
    if len(texts) not in (6, 7):
        raise _wrong(expression, f"{len(texts)} fields; 6 or 7 are allowed")
    if texts[0] != "0":
        raise _wrong(expression, f"the second is '{texts[0]}'; only 0 is allowed")
    if (texts[3] == "?") == (texts[5] == "?"):
        raise _wrong(expression, "exactly one of day of month and day of week must be ?")
    texts = [*texts[1:], *(["*"] if len(texts) == 6 else [])]
    values = [_values(expression, field, text) for field, text in zip(_FIELDS, texts, strict=True)]
    minutes, hours, days, months, weekdays, years = values
    assert minutes is not None and hours is not None and months is not None and years is not None
    return Cron(minutes=minutes, hours=hours, days=days, months=months, weekdays=weekdays, years=years)


def _values(expression: str, field: Field, text: str) -> frozenset[int] | None:
    if text == "?":
        if field.name not in ("day of month", "day of week"):
            raise _wrong(expression, f"the {field.name} can't be ?")
        return None
    values: set[int] = set()
    for part in text.split(","):
        match = _PART.match(part)
        if match is None:
            raise _wrong(expression, f"the {field.name} is '{text}'")
        first, last, step = match.groups()
        if first == "*":
            low, high = field.low, field.high
        else:
            low = _number(expression, field, first)
            high = field.high if step else low
        if last is not None:
            high = _number(expression, field, last)
        if (first == "*" and last is not None) or low > high or step == "0":
            raise _wrong(expression, f"the {field.name} is '{text}'")
        values |= set(range(low, high + 1, int(step or 1)))
    return frozenset(values)


def _number(expression: str, field: Field, text: str) -> int:
    if text.upper() in field.names:
        return field.low + field.names.index(text.upper())
    if not text.isdecimal() or not field.low <= int(text) <= field.high:
        raise _wrong(expression, f"the {field.name} is '{text}', not {field.low} to {field.high}")
    return int(text)


def _wrong(expression: str, why: str) -> Exception:
    return invalid(f"executionSchedule.expression '{expression}' is no valid cron expression: {why}")
