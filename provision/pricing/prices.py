"""What machines cost: the list prices that are shipped with gpuctl, and those that were asked for since.

`refresh` asks the vendors and keeps the answers in `$GPUCTL_HOME/prices.json`; what is there wins over what was
shipped. A price that nobody stated for a region is not known: AWS's differ by region, OCI's don't.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from inventories import codec
from inventories.disk import files
from inventories.errors import CorruptFile
from provision.clouds import describe, price_region
from provision.errors import CloudError
from provision.pricing.catalog import SHAPES, provider_by_name

Say = Callable[[str], None]

FILE_NAME = "prices.json"
REBUILD = "Remove the file, or replace it with `gpuctl shapes --refresh-prices`."


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one machine costs, on demand."""

    usd_per_hour: float
    date: str
    """When that was the price: `2026-07`, `2026-11-21`."""
    source: str
    """Who says so: an address, or `shipped with gpuctl`."""


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """One vendor's answer."""

    provider: str
    region: str | None
    """None: the same everywhere."""
    date: str
    source: str
    usd_per_hour: dict[str, float]
    """By the shape's name."""
    disk_usd_per_gb_month: float | None = None
    """Of boot volumes. None: it was not asked for."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """All answers there are, one for each provider and region."""

    lists: tuple[PriceList, ...] = ()

    def of(self, shape: str, region: str | None) -> Price | None:
        """A machine's price, as in `price_of`."""
        provider = provider_by_name(shape)
        if provider is None:
            return None
        where = price_region(provider, region)
        for answer in self.lists:
            if (answer.provider, answer.region) == (provider, where) and shape in answer.usd_per_hour:
                usd = answer.usd_per_hour[shape]
                return Price(usd_per_hour=usd, date=answer.date, source=answer.source)
        shipped = SHAPES.get(shape)
        if (
            shipped is None
            or shipped.usd_per_hour is None
            or where not in (None, describe(provider).price_region)
        ):
            return None
        return Price(usd_per_hour=shipped.usd_per_hour, date=shipped.priced_at, source=shipped.price_source)

    def disk_usd_per_gb_month(self, provider: str, region: str | None) -> float | None:
        """What a GB of a boot volume costs a month, where that was asked for."""
        where = price_region(provider, region)
        found = (a.disk_usd_per_gb_month for a in self.lists if (a.provider, a.region) == (provider, where))
        return next(found, None)

    def asked(self, provider: str, region: str | None) -> bool:
        """Whether the provider was ever asked for its prices there."""
        where = price_region(provider, region)
        return any((answer.provider, answer.region) == (provider, where) for answer in self.lists)

    def with_list(self, answer: PriceList) -> "Prices":
        """These prices with one more answer, in the place of an older one."""
        kept = [old for old in self.lists if (old.provider, old.region) != (answer.provider, answer.region)]
        return Prices(lists=(*kept, answer))


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What `refresh` got."""

    got: tuple[PriceList, ...] = ()
    failed: tuple[str, ...] = ()
    """A sentence for each provider that could not be asked."""


def price_of(home: Path, shape: str, region: str | None) -> Price | None:
    """What one machine of that shape costs on demand. None: not known.

    `region` is the provider's; None: where its list prices hold. Spot prices are not known here. Raises
    CorruptFile or NewerFormat for a file of prices that can't be read.
    """
    return load(home).of(shape, region)


def load(home: Path) -> Prices:
    """The answers that are kept; none where nothing was ever asked. Raises CorruptFile or NewerFormat."""
    path = home / FILE_NAME
    text = files.read_bytes(path)
    if text is None:
        return Prices()
    prices = codec.load(Prices, text, str(path), rebuild=REBUILD)
    for answer in prices.lists:
        for shape, usd in answer.usd_per_hour.items():
            if not (math.isfinite(usd) and usd > 0):
                raise CorruptFile(f"'{path}' can't be used: {shape} can't cost {usd}. {REBUILD}")
        disk_usd = answer.disk_usd_per_gb_month
        if disk_usd is not None and not (math.isfinite(disk_usd) and disk_usd > 0):
            raise CorruptFile(f"'{path}' can't be used: a disk can't cost {disk_usd}. {REBUILD}")
    return prices


def refresh(home: Path, providers: Iterable[str], region: str | None, now: datetime, say: Say) -> Refreshed:
    """Ask the providers for their prices, those of one region where they differ, and keep each answer as it comes.

    One that can't be asked does not keep the others from it, and what was known of it stays. A file that is
    torn is replaced by what is got; where that is nothing, CorruptFile is raised. Raises NewerFormat, and
    NoAccess where nothing can be written.
    """
    prices, torn = Prices(), None
    try:
        prices = load(home)
    except CorruptFile as error:
        torn = error
    got: list[PriceList] = []
    failed: list[str] = []
    for provider in providers:
        where = price_region(provider, region)
        say(f"asking {provider.upper()} for its prices{f' in {where}' if where else ''} …")
        try:
            found = describe(provider).read_prices(where or "", say)
        except CloudError as error:
            failed.append(str(error))
            continue
        answer = PriceList(
            provider=provider,
            region=where,
            date=now.date().isoformat(),
            source=found.url,
            usd_per_hour=found.usd_per_hour,
            disk_usd_per_gb_month=found.disk_usd_per_gb_month,
        )
        prices = prices.with_list(answer)
        files.private_dir(home)
        files.write_atomic(home / FILE_NAME, codec.dump(prices))
        got.append(answer)
    if torn is not None and not got:
        raise CorruptFile(f"{' '.join(failed)} {torn}") from torn
    return Refreshed(got=tuple(got), failed=tuple(failed))
