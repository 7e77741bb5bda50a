"""The vendors' public price lists: what is asked, and which of the answer's lines are a machine's price.

OCI has one small JSON document for all commercial regions. AWS has a file of some hundred MB for each region,
which is read line by line and never held. No account and no key is needed; nothing is written here.
"""

import csv
import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from inventories.suggest import did_you_mean
from provision.errors import CloudError
from provision.pricing.catalog import SHAPES

OCI_URL_VARIABLE = "GPUCTL_OCI_PRICE_URL"
"""Names another address for OCI's document."""
OCI_URL = "https://apexapps.oracle.com/pls/apex/cetools/api/v1/products/?currencyCode=USD"
AWS_URL_VARIABLE = "GPUCTL_AWS_PRICE_URL"
"""Names another address for AWS's index of regions; the files are where that index says."""
AWS_URL = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonEC2/current/region_index.json"

SILENCE_S = 30.0
"""How long a server may say nothing."""
DEADLINE_S = 1800.0
"""How long one file may take."""
PIECE = 1 << 20
LARGEST_DOCUMENT = 32 << 20
LARGEST_FILE = 4 << 30
LONGEST_LINE = 1 << 16
MEGABYTE = 1_000_000
TOLD_EVERY = 100 * MEGABYTE

OCI_PARTS = {
    "VM.GPU2.1": "B88518",
    "VM.GPU3.1": "B89734",
    "VM.GPU3.2": "B89734",
    "VM.GPU3.4": "B89734",
    "VM.GPU.A10.1": "B95909",
    "VM.GPU.A10.2": "B95909",
    "BM.GPU.A10.4": "B95909",
    "BM.GPU3.8": "B89734",
    "BM.GPU4.8": "B92740",
    "BM.GPU.A100-v2.8": "B95907",
    "BM.GPU.L40S.4": "B109479",
    "BM.GPU.H100.8": "B98415",
    "BM.GPU.H200.8": "B110519",
    "BM.GPU.B200.8": "B110978",
    "BM.GPU.GB200.4": "B110979",
    "BM.GPU.GB300.4": "B112140",
}
"""Shape → the part number by which OCI bills an hour of one of its GPUs. Names of parts are less stable, and
licences are called almost the same."""

AWS_FILTER = {
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
AWS_COLUMNS = ("Instance Type", "PricePerUnit", "Region Code", *AWS_FILTER)
HEADER_WITHIN = 20
"""Lines of the file; a few about the file itself come first."""

Say = Callable[[str], None]


class NotUsable(ValueError):
    """A list that is not what we know such a list to be; the message is a clause."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a vendor's list says."""

    url: str
    """Where it was read."""
    usd_per_hour: dict[str, float]
    """By the shape's name."""
    disk_usd_per_gb_month: float | None = None
    """Of boot volumes; None: the list was not asked, or does not tell."""


def read_oci(_region: str, _say: Say) -> Answer:
    """OCI's list, for the shapes of the catalog. Raises CloudError."""
    url = os.environ.get(OCI_URL_VARIABLE) or OCI_URL
    return Answer(url=url, usd_per_hour=_used("OCI", url, lambda: oci_prices(_document("OCI", url))))


def read_aws(region: str, say: Say) -> Answer:
    """AWS's list of a region. Raises CloudError.

    All types, also those that the catalog does not have. `say` is told of the progress.
    """
    index_url = os.environ.get(AWS_URL_VARIABLE) or AWS_URL
    index = _document("AWS", index_url)
    regions = _used("AWS", index_url, lambda: aws_regions(index))
    if region not in regions:
        hint = did_you_mean(region, regions) or "."
        raise CloudError(f"AWS's price list has no region '{region}'{hint}", operation=index_url)
    url = urljoin(index_url, regions[region])
    disks: set[float] = set()
    found = _used("AWS", url, lambda: aws_prices(_lines("AWS", url, say), region, disks.add))
    # As with machines: two prices are none.
    disk = disks.pop() if len(disks) == 1 else None
    return Answer(url=url, usd_per_hour=found, disk_usd_per_gb_month=disk)


def oci_prices(document: object) -> dict[str, float]:
    """Shape → USD an hour of the whole machine, of OCI's document. Raises NotUsable where none is in it."""
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise NotUsable("it has no list of products")
    a_gpu: dict[str, float] = {}
    for item in _objects(items):
        price = _pay_as_you_go(item) if item.get("metricName") == "GPU Per Hour" else None
        if price is not None:
            a_gpu[str(item.get("partNumber"))] = price
    prices = {
        shape: round(a_gpu[part] * SHAPES[shape].gpus, 6)
        for shape, part in OCI_PARTS.items()
        if part in a_gpu
    }
    if not prices:
        raise NotUsable("it has no price of any GPU that gpuctl knows")
    return prices


def _pay_as_you_go(item: dict[str, Any]) -> float | None:
    """The one price in USD of a product of OCI's; None where there is none, or more than one."""
    found = [
        price.get("value")
        for place in _objects(item.get("currencyCodeLocalizations"))
        if place.get("currencyCode") == "USD"
        for price in _objects(place.get("prices"))
        if price.get("model") == "PAY_AS_YOU_GO"
    ]
    return _price(found[0]) if len(found) == 1 else None


def _objects(value: object) -> list[dict[str, Any]]:
    """The objects in what should be a list of them."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def aws_regions(index: object) -> dict[str, str]:
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


def aws_prices(
    lines: Iterable[bytes], region: str, disk: Callable[[float], None] = lambda _: None
) -> dict[str, float]:
    """Type → USD an hour, of the lines of a region's file. A type that has two prices is left out.

    `disk` is told what a GB of a gp3 volume costs a month.

    Raises NotUsable where the columns are not those that we know, or nothing is left.
    """
    prices: dict[str, float] = {}
    doubtful: set[str] = set()
    columns: list[str] | None = None
    for number, line in enumerate(lines):
        if columns is None:
            columns = _columns(line, number)
            continue
        if b'"gp3"' in line and b'"GB-Mo"' in line:
            row = dict(zip(columns, _fields(line), strict=False))
            usd = _price(row.get("PricePerUnit"))
            right = row.get("Region Code") == region and all(row.get(at) == ok for at, ok in _GP3.items())
            if usd is not None and right:
                disk(usd)
            continue
        # Of a million lines some thousand pass: only those are worth taking apart.
        if b'"Linux"' not in line or b'"Shared"' not in line or b'"Reserved"' in line:
            continue
        row = dict(zip(columns, _fields(line), strict=False))
        if row.get("Region Code") != region or any(row.get(at) not in ok for at, ok in AWS_FILTER.items()):
            continue
        name, price = row["Instance Type"], _price(row["PricePerUnit"])
        if price is None:
            continue
        if prices.setdefault(name, price) != price:
            doubtful.add(name)
    if columns is None:
        raise NotUsable("it has no header")
    known = {name: price for name, price in prices.items() if name not in doubtful}
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
    missing = [name for name in AWS_COLUMNS if name not in columns]
    if missing:
        raise NotUsable(f"it lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    return columns


def _fields(line: bytes) -> list[str]:
    return next(csv.reader([line.decode(errors="replace")]), [])


def _price(value: object) -> float | None:
    """A price above 0; None for anything else: reserved capacity is listed at 0."""
    try:
        price = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return price if math.isfinite(price) and price > 0 else None


def _used(vendor: str, url: str, read: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever `read` returns
    try:
        return read()
    except NotUsable as error:
        raise CloudError(f"{vendor}'s price list at {url} can't be used: {error}.", operation=url) from error


def _document(vendor: str, url: str) -> object:
    """A JSON document from the network."""
    body = b"".join(_pieces(vendor, url, LARGEST_DOCUMENT))
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CloudError(
            f"{vendor}'s price list at {url} can't be used: it is no JSON.", operation=url
        ) from error


def _lines(vendor: str, url: str, say: Say) -> Iterator[bytes]:
    """The lines of a file from the network; no more than a piece of it is held."""
    rest = b""
    got = told = 0
    for piece in _pieces(vendor, url, LARGEST_FILE):
        got += len(piece)
        if got - told >= TOLD_EVERY:
            told = got
            say(f"{got // MEGABYTE} MB of {vendor}'s price list read …")
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise NotUsable("it has no lines")
        yield from whole
    if rest:
        yield rest


def _pieces(vendor: str, url: str, most: int) -> Iterator[bytes]:
    """The body of a page, in pieces. Raises CloudError unless it arrives whole."""

    def failed(why: object) -> CloudError:
        return CloudError(f"{vendor}'s price list could not be read from {url}: {why}.", operation=url)

    if urlsplit(url).scheme not in ("https", "http"):
        raise failed("that is no web address")
    request = urllib.request.Request(url, headers={"User-Agent": "gpuctl"})  # noqa: S310 - checked above
    ends = time.monotonic() + DEADLINE_S
    got = 0
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_S) as reply:  # noqa: S310
            length = reply.headers.get("Content-Length", "")
            whole = int(length) if length.isdecimal() else None
            while got != whole and (piece := reply.read1(PIECE)):
                got += len(piece)
                if got > most:
                    raise failed(f"it is larger than {most // MEGABYTE} MB")
                if time.monotonic() > ends:
                    raise failed(f"it takes longer than {DEADLINE_S / 60:.0f} minutes")
                yield piece
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise failed(f"the server answers {error.code} {error.reason}".rstrip()) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise failed(_why(error)) from error
    if whole is not None and got < whole:  # http.client takes a lost connection for the end
        raise failed(f"the connection ended after {got} of {whole} bytes")


def _why(error: Exception) -> str:
    """The system's own words for what went wrong."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"the server said nothing for {SILENCE_S:.0f} seconds"
    words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return str(words).rstrip(".")
