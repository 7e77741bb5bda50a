"""Reading a vendor's public price list: a page or a file from the network, whole or line by line.

Needs no account and no key, and writes no file. The cloud's own package parses the list.
"""

import http.client
import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from inventories.clocks import awake_s
from provision.errors import CloudError
from provision.waiting import Say

SILENCE_S = 30.0
"""Longest silence of a server."""
DEADLINE_S = 1800.0
"""Longest time for one file."""
PIECE = 1 << 20
LARGEST_DOCUMENT = 32 << 20
LARGEST_FILE = 4 << 30
LONGEST_LINE = 1 << 16
MEGABYTE = 1_000_000
PROGRESS_BYTES = 100 * MEGABYTE


class NotUsable(ValueError):
    """A list of an unknown form; the message is a clause."""


def price_of(value: object) -> float | None:
    """Return a price above 0. `None` for all other values: reserved capacity is listed at 0."""
    try:
        price = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return price if math.isfinite(price) and price > 0 else None


def used(vendor: str, url: str, read: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever `read` returns
    """Return the result of `read`. Raises CloudError for an unusable list."""
    try:
        return read()
    except NotUsable as error:
        raise CloudError(f"{vendor}'s price list at {url} can't be used: {error}.", operation=url) from error


def document(vendor: str, url: str) -> object:
    """Fetch a JSON document."""
    body = b"".join(_pieces(vendor, url, LARGEST_DOCUMENT))
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CloudError(
            f"{vendor}'s price list at {url} can't be used: it is no JSON.", operation=url
        ) from error


def lines(vendor: str, url: str, say: Say) -> Iterator[bytes]:
    """Fetch a file line by line, with one piece in memory."""
    rest = b""
    got = reported = 0
    for piece in _pieces(vendor, url, LARGEST_FILE):
        got += len(piece)
        if got - reported >= PROGRESS_BYTES:
            reported = got
            say(f"{got // MEGABYTE} MB of {vendor}'s price list read …")
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise NotUsable("it has no lines")
        yield from whole
    if rest:
        yield rest


def _pieces(vendor: str, url: str, max_bytes: int) -> Iterator[bytes]:
    """Fetch the body of a page in pieces. Raises CloudError unless it arrives whole."""

    def failed(why: object) -> CloudError:
        return CloudError(f"{vendor}'s price list could not be read from {url}: {why}.", operation=url)

    if urlsplit(url).scheme not in ("https", "http"):
        raise failed("that is no web address")
    request = urllib.request.Request(url, headers={"User-Agent": "gpuctl"})  # noqa: S310 - checked above
    ends = awake_s() + DEADLINE_S
    got = 0
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_S) as reply:  # noqa: S310
            length = reply.headers.get("Content-Length", "")
            whole = int(length) if length.isdecimal() else None
            while got != whole and (piece := reply.read1(PIECE)):
                got += len(piece)
                if got > max_bytes:
                    raise failed(f"it is larger than {max_bytes // MEGABYTE} MB")
                if awake_s() > ends:
                    raise failed(f"it takes longer than {DEADLINE_S / 60:.0f} minutes")
                yield piece
    except urllib.error.HTTPError as error:
        error.close()  # the error keeps the connection
        raise failed(f"the server answers {error.code} {error.reason}".rstrip()) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise failed(f"the server said nothing for {SILENCE_S:.0f} seconds") from error
        words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise failed(str(words).rstrip(".")) from error
    if whole is not None and got < whole:  # http.client takes a lost connection for the end
        raise failed(f"the connection ended after {got} of {whole} bytes")
