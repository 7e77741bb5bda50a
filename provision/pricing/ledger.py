"""The prices of rented clusters over time, in `ledger.jsonl` under `$GPUCTL_HOME`: it outlives the clusters' files.

A line is a cluster's price from a time on. The arithmetic is pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from inventories.disk.journal import Journal
from inventories.errors import CorruptFile
from provision.records import read_time

FILE_NAME = "ledger.jsonl"
EVENT = "price"


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The price of a cluster from a time on, until its next rate."""

    cluster: str
    id: str
    provider: str
    region: str | None
    account: str | None = None
    """The account's id by the cloud. `None`: not known."""
    since: str
    """ISO 8601, UTC."""
    machines: int
    hourly_usd: float | None
    """Of everything that is billed by the hour. `None`: not known."""
    ends_at: str | None = None
    """Time at which a mechanism ends the machines and their bill. `None`: no such mechanism."""
    rest_hourly_usd: float = 0.0
    """Price after that time, of what only `down` removes."""
    least_s: float = 0.0
    """Shortest time that its machines are billed for."""
    unknown: str = ""
    """Sentence on a gap in the knowledge of the time before. Empty: no gap."""

    @property
    def ended(self) -> bool:
        """Return whether the cluster was removed."""
        return not self.machines and self.hourly_usd == 0


@dataclass(frozen=True, kw_only=True)
class Span:
    """A time with one price."""

    begin: datetime
    end: datetime
    hourly_usd: float | None

    def within(self, begin: datetime, end: datetime) -> "Span | None":
        """Return the part of the span between two times."""
        begin, end = max(self.begin, begin), min(self.end, end)
        return replace(self, begin=begin, end=end) if begin < end else None

    @property
    def usd(self) -> float | None:
        """Return its cost. `None`: not known."""
        hours = (self.end - self.begin).total_seconds() / 3600
        return None if self.hourly_usd is None else self.hourly_usd * hours


def journal(home: Path) -> Journal:
    """Return the ledger's file."""
    return Journal(home / FILE_NAME)


def record(home: Path, rate: Rate) -> None:
    """Add a rate, unless it is the cluster's price already."""
    last = rates(home).get(rate.id, [])[-1:]
    if last and replace(last[0], since=rate.since) == rate:
        return
    journal(home).append(EVENT, **asdict(rate))


def rates(home: Path) -> dict[str, list[Rate]]:
    """Return the rates of each cluster, by id, oldest first. Raises CorruptFile."""
    known = {field.name for field in fields(Rate)}
    by_cluster: dict[str, list[Rate]] = {}
    for number, entry in enumerate(journal(home).read(), start=1):
        try:
            rate = Rate(**{name: value for name, value in entry.items() if name in known})
            begin_of(rate)
        except (TypeError, ValueError) as error:
            raise CorruptFile(
                f"'{home / FILE_NAME}' can't be used: line {number} has no value, or a wrong one. Remove that line."
            ) from error
        by_cluster.setdefault(rate.id, []).append(rate)
    return {cluster: sorted(each, key=lambda rate: rate.since) for cluster, each in by_cluster.items()}


def end_of(rate: Rate, now: datetime, unknown: str = "") -> Rate:
    """Return the rate of a cluster that is removed now. `unknown`: see `Rate`."""
    return replace(
        rate,
        since=now.isoformat(timespec="seconds"),
        machines=0,
        hourly_usd=0.0,
        rest_hourly_usd=0.0,
        ends_at=None,
        unknown=unknown,
    )


def spans(rates: Sequence[Rate], until: datetime) -> list[Span]:
    """Return the times of a cluster with their prices. `until`: end of the last rate, if the cluster exists then."""
    result: list[Span] = []
    launches: list[datetime] = []
    # From each machine's end to the end of its shortest billed time. The newest machines end first.
    for last, rate in pairwise(rates):
        launches += [begin_of(last)] * (last.machines - len(launches))
        each_usd = last.hourly_usd and last.hourly_usd / last.machines if last.machines else 0.0
        while len(launches) > rate.machines:
            least_end = launches.pop() + timedelta(seconds=last.least_s)
            result.append(Span(begin=begin_of(rate), end=least_end, hourly_usd=each_usd))
    for rate, following in zip(rates, [*rates[1:], None], strict=True):
        begin = begin_of(rate)
        end = until if following is None else begin_of(following)
        ends = read_time(rate.ends_at) or end
        result += [
            Span(begin=begin, end=min(end, ends), hourly_usd=rate.hourly_usd),
            Span(begin=max(begin, ends), end=end, hourly_usd=rate.rest_hourly_usd),
        ]
    billed = [span for span in result if span.begin < span.end and span.hourly_usd != 0]
    return sorted(billed, key=lambda span: span.begin)


def total_usd(spans: Iterable[Span]) -> tuple[float, bool]:
    """Return the known cost of spans, and whether each has a price."""
    costs = [span.usd for span in spans]
    return round(sum(cost or 0.0 for cost in costs), 4), None not in costs


def by_day(spans: Iterable[Span]) -> dict[str, float]:
    """Return day (UTC) → cost as far as it is known."""
    days: dict[str, float] = {}
    for span in spans:
        day = span.begin.replace(hour=0, minute=0, second=0, microsecond=0)
        while day < span.end:
            part = span.within(day, day + timedelta(days=1))
            if part is not None and part.usd is not None:
                name = f"{day:%Y-%m-%d}"
                days[name] = days.get(name, 0.0) + part.usd
            day += timedelta(days=1)
    return {day: round(usd, 4) for day, usd in sorted(days.items())}


def month_of(now: datetime) -> tuple[datetime, datetime]:
    """Return begin and end of the calendar month (UTC) of a time."""
    begin = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return begin, (begin + timedelta(days=32)).replace(day=1)


def begin_of(rate: Rate) -> datetime:
    """Return the time from which a rate holds. Raises ValueError for a text that is no time."""
    time = read_time(rate.since)
    if time is None:
        raise ValueError(f"{rate.since!r} is no time")
    return time.astimezone(UTC)
