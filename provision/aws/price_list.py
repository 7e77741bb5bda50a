"""AWS's public price lists: a file of several hundred MB for each region, read line by line."""

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
"""Variable with another address for the index of regions, which has the addresses of the files."""
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
"""Column → values of a line with the price of a plain Linux machine on demand."""
_GP3 = {
    "TermType": "OnDemand",
    "Unit": "GB-Mo",
    "Currency": "USD",
    "Location Type": "AWS Region",
    "Product Family": "Storage",
    "Volume API Name": "gp3",
}
"""Column → value of a line with the price of a gp3 volume's storage."""
COLUMNS = ("Instance Type", "PricePerUnit", "Region Code", *FILTER)
HEADER_WITHIN = 20
"""Lines before the header at most: the first lines are about the file itself."""


def read(region: str, say: Say) -> PublicPrices:
    """Return AWS's prices in a region, also of types that the catalog lacks. Raises CloudError.

    `say` gets the progress.
    """
    index_url = os.environ.get(URL_VARIABLE) or URL
    index = document("AWS", index_url)
    regions = used("AWS", index_url, lambda: regions_of(index))
    if region not in regions:
        hint = did_you_mean(region, regions) or "."
        raise CloudError(f"AWS's price list has no region '{region}'{hint}", operation=index_url)
    url = urljoin(index_url, regions[region])
    disks: set[float] = set()
    usd_per_hour = used("AWS", url, lambda: prices(lines("AWS", url, say), region, disks.add))
    # As with machines: two different prices count as unknown.
    disk = disks.pop() if len(disks) == 1 else None
    return PublicPrices(url=url, usd_per_hour=usd_per_hour, disk_usd_per_gb_month=disk)


def regions_of(index: object) -> dict[str, str]:
    """Return region → address of its file of comma-separated values, relative to the index of regions."""
    regions = index.get("regions") if isinstance(index, dict) else None
    if not isinstance(regions, dict):
        raise NotUsable("it has no regions")
    urls = {
        region: entry["currentVersionUrl"]
        for region, entry in regions.items()
        if isinstance(entry, dict) and isinstance(entry.get("currentVersionUrl"), str)
    }
    # The index names files in JSON; the same folder has them with lines.
    return {region: path.removesuffix(".json") + ".csv" for region, path in urls.items()}


def prices(
    rows: Iterable[bytes], region: str, disk: Callable[[float], None] = lambda _: None
) -> dict[str, float]:
    """Return type → USD an hour, of the lines of a region's file, without types that have two prices.

    `disk` gets the monthly price of a GB of a gp3 volume. Raises NotUsable for unknown columns, or without any price.
    """
    usd_per_hour: dict[str, float] = {}
    doubtful: set[str] = set()
    columns: list[str] | None = None
    for number, line in enumerate(rows):
        if columns is None:
            if not line.startswith(b'"SKU"'):
                if number >= HEADER_WITHIN:
                    raise NotUsable("it has no header")
                columns = None
            else:
                columns = _fields(line)
                missing = [name for name in COLUMNS if name not in columns]
                if missing:
                    raise NotUsable(f"it lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
            continue
        if b'"gp3"' in line and b'"GB-Mo"' in line:
            row = dict(zip(columns, _fields(line), strict=False))
            usd = price_of(row.get("PricePerUnit"))
            right = row.get("Region Code") == region and all(row.get(at) == ok for at, ok in _GP3.items())
            if usd is not None and right:
                disk(usd)
            continue
        # Of a million lines some thousand pass: only these are parsed.
        if b'"Linux"' not in line or b'"Shared"' not in line or b'"Reserved"' in line:
            continue
        row = dict(zip(columns, _fields(line), strict=False))
        if row.get("Region Code") != region or any(row.get(at) not in ok for at, ok in FILTER.items()):
            continue
        name, price = row["Instance Type"], price_of(row["PricePerUnit"])
        if price is None:
            continue
        if usd_per_hour.setdefault(name, price) != price:
            doubtful.add(name)
    if columns is None:
        raise NotUsable("it has no header")
    known = {name: price for name, price in usd_per_hour.items() if name not in doubtful}
    if not known:
        raise NotUsable(f"it has no price of a Linux machine on demand in {region}")
    return known


def _fields(line: bytes) -> list[str]:
    return next(csv.reader([line.decode(errors="replace")]), [])
