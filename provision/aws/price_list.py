"""AWS's public price lists: a file of several hundred MB for each region, read line by line and never held."""

import csv
import os
from collections.abc import Callable, Iterable
from urllib.parse import urljoin

from inventories.text import did_you_mean
from provision.clouds import PublicPrices
from provision.errors import CloudError
from provision.pricing.price_list import NotUsable, document, lines, price_of, used
from provision.waiting import Say

URL_VARIABLE = "GPUCTL_AWS_PRICE_URL"
"""Names another address for the index of regions; the files are where that index says."""
URL = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonEC2/current/region_index.json"

FILTER = {
    "TermType": ("OnDemand",),
    "Unit": ("Hrs",),
    "Currency": ("USD",),
    "Location Type": ("AWS Region",),
    "Tenancy": ("Shared",),
    "Operating System": ("Linux",),
    "Pre Installed S/W": ("", "NA"),
    "CapacityStatus": ("Used",),
    "MarketOption": ("", "OnDemand"),
}
"""Column → what a line has there that is the price of a plain Linux machine on demand."""
_GP3 = {
    "TermType": "OnDemand",
    "Unit": "GB-Mo",
    "Currency": "USD",
    "Location Type": "AWS Region",
    "Product Family": "Storage",
    "Volume API Name": "gp3",
}
"""Column → what a line has there that is the price of a gp3 volume's storage."""
COLUMNS = ("Instance Type", "PricePerUnit", "Region Code", *FILTER)
HEADER_WITHIN = 20
"""Lines of the file; a few about the file itself come first."""


def read(region: str, say: Say) -> PublicPrices:
    """AWS's list of a region. Raises CloudError.

    All types, also those that the catalog does not have. `say` is told of the progress.
    """
    index_url = os.environ.get(URL_VARIABLE) or URL
    index = document("AWS", index_url)
    regions = used("AWS", index_url, lambda: regions_of(index))
    if region not in regions:
        hint = did_you_mean(region, regions) or "."
        raise CloudError(f"AWS's price list has no region '{region}'{hint}", operation=index_url)
    url = urljoin(index_url, regions[region])
    disks: set[float] = set()
    found = used("AWS", url, lambda: prices(lines("AWS", url, say), region, disks.add))
    # As with machines: two prices are none.
    disk = disks.pop() if len(disks) == 1 else None
    return PublicPrices(url=url, usd_per_hour=found, disk_usd_per_gb_month=disk)


def regions_of(index: object) -> dict[str, str]:
    """Region → where its file of comma-separated values is, relative to the index of regions."""
    regions = index.get("regions") if isinstance(index, dict) else None
    if not isinstance(regions, dict):
        raise NotUsable("it has no regions")
    found = {
        region: entry["currentVersionUrl"]
        for region, entry in regions.items()
        if isinstance(entry, dict) and isinstance(entry.get("currentVersionUrl"), str)
    }
    # The index names the files in JSON; the same ones are beside them line by line.
    return {region: path.removesuffix(".json") + ".csv" for region, path in found.items()}


def prices(
    rows: Iterable[bytes], region: str, disk: Callable[[float], None] = lambda _: None
) -> dict[str, float]:
    """Type → USD an hour, of the lines of a region's file. A type that has two prices is left out.

    `disk` is told what a GB of a gp3 volume costs a month.

    Raises NotUsable where the columns are not those that we know, or nothing is left.
    """
    found: dict[str, float] = {}
    doubtful: set[str] = set()
    columns: list[str] | None = None
    for number, line in enumerate(rows):
        if columns is None:
            columns = _columns(line, number)
            continue
        if b'"gp3"' in line and b'"GB-Mo"' in line:
            row = dict(zip(columns, _fields(line), strict=False))
            usd = price_of(row.get("PricePerUnit"))
            right = row.get("Region Code") == region and all(row.get(at) == ok for at, ok in _GP3.items())
            if usd is not None and right:
                disk(usd)
            continue
        # Of a million lines some thousand pass: only those are worth taking apart.
        if b'"Linux"' not in line or b'"Shared"' not in line or b'"Reserved"' in line:
            continue
        row = dict(zip(columns, _fields(line), strict=False))
        if row.get("Region Code") != region or any(row.get(at) not in ok for at, ok in FILTER.items()):
            continue
        name, price = row["Instance Type"], price_of(row["PricePerUnit"])
        if price is None:
            continue
        if found.setdefault(name, price) != price:
            doubtful.add(name)
    if columns is None:
        raise NotUsable("it has no header")
    known = {name: price for name, price in found.items() if name not in doubtful}
    if not known:
        raise NotUsable(f"it has no price of a Linux machine on demand in {region}")
    return known


def _columns(line: bytes, number: int) -> list[str] | None:
    """The names of the columns, where this line has them. None: not yet."""
    if not line.startswith(b'"SKU"'):
        if number >= HEADER_WITHIN:
            raise NotUsable("it has no header")
        return None
    columns = _fields(line)
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise NotUsable(f"it lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    return columns


def _fields(line: bytes) -> list[str]:
    return next(csv.reader([line.decode(errors="replace")]), [])
