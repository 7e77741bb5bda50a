"""The prices of machines: list prices shipped with gpuctl, and refreshed ones.

`refresh` asks the vendors and keeps the answers in `$GPUCTL_HOME/prices.json`, which precede the shipped prices. A
price without a source for the region is not known: AWS's differ by region, OCI's don't.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from inventories import codec
from inventories.disk import files
from inventories.errors import CorruptFile
from provision.clouds import describe, price_region
from provision.errors import CloudError
from provision.pricing.catalog import SHAPES, provider_by_name
from provision.waiting import Say

FILE_NAME = "prices.json"
REBUILD = "Remove the file, or replace it with `gpuctl shapes --refresh-prices`."


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one machine, on demand."""

    usd_per_hour: float
    date: str
    """Day or month of the price: `2026-07`, `2026-11-21`."""
    source: str
    """An address, or `shipped with gpuctl`."""


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """One vendor's answer."""

    provider: str
    region: str | None
    """`None`: the same prices everywhere."""
    date: str
    source: str
    usd_per_hour: dict[str, float]
    """Prices by the shape's name."""
    disk_usd_per_gb_month: float | None = None
    """Price of boot volumes. `None`: not in the answer."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The vendors' answers, one for each provider and region."""

    lists: tuple[PriceList, ...] = ()

    def of(self, shape: str, region: str | None) -> Price | None:
        """Return the price of a machine of the shape. See `price_of`."""
        provider = provider_by_name(shape)
        if provider is None:
            return None
        answer = self.list_of(provider, region)
        if answer is not None and shape in answer.usd_per_hour:
            return Price(usd_per_hour=answer.usd_per_hour[shape], date=answer.date, source=answer.source)
        place = price_region(provider, region)
        shipped = SHAPES.get(shape)
        if (
            shipped is None
            or shipped.usd_per_hour is None
            or place not in (None, describe(provider).price_region)
        ):
            return None
        return Price(usd_per_hour=shipped.usd_per_hour, date=shipped.priced_at, source=shipped.price_source)

    def disk_usd_per_gb_month(self, provider: str, region: str | None) -> float | None:
        """Return the price of a GB of a boot volume a month. `None`: no answer has it."""
        answer = self.list_of(provider, region)
        return None if answer is None else answer.disk_usd_per_gb_month

    def list_of(self, provider: str, region: str | None) -> PriceList | None:
        """Return the provider's answer for that region. `None`: its prices were not refreshed."""
        place = price_region(provider, region)
        return next((each for each in self.lists if (each.provider, each.region) == (provider, place)), None)


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """The result of `refresh`."""

    got: tuple[PriceList, ...] = ()
    failed: tuple[str, ...] = ()
    """A sentence for each provider that gave no prices."""


def price_of(home: Path, shape: str, region: str | None) -> Price | None:
    """Return the price of a machine of that shape on demand. `None`: not known, as spot prices are.

    `region` is the provider's. `None`: the region of its list prices. Raises CorruptFile or NewerFormat for an
    unreadable file of prices.
    """
    return load(home).of(shape, region)


def load(home: Path) -> Prices:
    """Return the refreshed prices. Raises CorruptFile or NewerFormat."""
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
    """Ask the providers for their prices, in one region if they differ, and write each answer as it comes.

    A failed provider stops no other, and keeps its earlier prices. The answers replace a torn file. Raises
    CorruptFile if the file is torn and no provider answered, NewerFormat, and NoAccess if the file can't be
    written.
    """
    prices, torn = Prices(), None
    try:
        prices = load(home)
    except CorruptFile as error:
        torn = error
    got: list[PriceList] = []
    failed: list[str] = []
    for provider in providers:
        place = price_region(provider, region)
        say(f"asking {provider.upper()} for its prices{f' in {place}' if place else ''} …")
        try:
            public = describe(provider).read_prices(place or "", say)
        except CloudError as error:
            failed.append(str(error))
            continue
        answer = PriceList(
            provider=provider,
            region=place,
            date=now.date().isoformat(),
            source=public.url,
            usd_per_hour=public.usd_per_hour,
            disk_usd_per_gb_month=public.disk_usd_per_gb_month,
        )
        remaining = [
            old for old in prices.lists if (old.provider, old.region) != (answer.provider, answer.region)
        ]
        prices = Prices(lists=(*remaining, answer))
        files.private_dir(home)
        files.write_atomic(home / FILE_NAME, codec.dump(prices))
        got.append(answer)
    if torn is not None and not got:
        raise CorruptFile(f"{' '.join(failed)} {torn}") from torn
    return Refreshed(got=tuple(got), failed=tuple(failed))
