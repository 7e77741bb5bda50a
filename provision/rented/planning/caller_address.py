"""From where SSH is let in: what was typed, else the address that this computer is seen with."""

import http.client
import ipaddress
import os
import urllib.error
import urllib.request

from inventories.deadline import within
from inventories.errors import InvalidInput
from provision.findings import Finding

ADDRESS_URL = "https://checkip.amazonaws.com"
"""Answers with the caller's address and nothing else."""
ADDRESS_URL_VARIABLE = "GPUCTL_ADDRESS_URL"
"""Names another such service, for networks that can't reach ours."""
ASK_TIMEOUT_S = 4.0
IN_ALL_S = 8.0
"""With the name service's time, and where the answer comes byte by byte."""
LONGEST_ANSWER = 64

YOUR_ADDRESS = "<your address>/32"
"""Stands for it in a plan where it is not known."""

_WAY_OUT = "Say who may reach SSH with --ssh-cidr, as in --ssh-cidr 203.0.113.7/32."


class AddressUnknown(InvalidInput):
    """The address that this computer is seen with can't be found out. `why` says it in a clause."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The address that this computer is seen with is not known: {why}. {_WAY_OUT}")
        self.why = why


def caller_cidrs(asked: str | None, *, url: str | None = None) -> tuple[str, ...]:
    """The address ranges from which SSH is let in.

    `asked`, a checked range, is taken as it is: the whole world only where it was typed. With None, the
    service at `url`, at the one that the environment names, or at ADDRESS_URL is asked, at most
    IN_ALL_S long, and its answer becomes a range of one. Raises AddressUnknown where it gives none, and
    InvalidInput where the environment names no service.
    """
    if asked is not None:
        return (asked,)
    url = url or os.environ.get(ADDRESS_URL_VARIABLE) or ADDRESS_URL
    if not url.startswith(("https://", "http://")):
        raise InvalidInput(
            f"{url!r} can't be asked for this computer's address: it is no web address. {_WAY_OUT}"
        )
    try:
        answer = within(IN_ALL_S, lambda: _ask(url), what="it did not answer")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise AddressUnknown(f"{url} does not tell ({reason})") from error
    try:
        address = ipaddress.ip_address(answer.strip().strip('"'))  # JSON puts quotes around it
    except ValueError as error:
        raise AddressUnknown(f"{url} answered {answer[:40]!r}, which is no address") from error
    if address.is_unspecified or address.is_multicast:
        raise AddressUnknown(f"{url} says that it is {address}, which can't be")
    return (str(ipaddress.ip_network(address)),)


def planned_cidrs(asked: str | None) -> tuple[tuple[str, ...], str]:
    """As `caller_cidrs`, for a plan: with what stands for the address where it is not known, and why it is not."""
    try:
        return caller_cidrs(asked), ""
    except AddressUnknown as error:
        return (YOUR_ADDRESS,), error.why


def check(asked: str | None) -> Finding:
    """What `doctor` says of it."""
    what = "your address"
    try:
        (cidr,) = caller_cidrs(asked)
    except AddressUnknown as error:
        fix = "Add `--ssh-cidr 203.0.113.7/32` to `up`, with the address that this computer is seen with."
        return Finding(what=what, ok=False, detail=f"not known: {error.why}", fix=fix)
    except InvalidInput as error:
        what_is_wrong, _, fix = str(error).partition(". ")
        return Finding(what=what, ok=False, detail=what_is_wrong.rstrip("."), fix=fix)
    return Finding(what=what, ok=True, detail=f"`up` would let in SSH from {cidr}")


def _ask(url: str) -> str:
    """The start of a page's text. Proxies are passed by, as SSH does not go through them either."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ASK_TIMEOUT_S) as reply:
            data: bytes = reply.read(LONGEST_ANSWER)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise
    return data.decode("ascii", "replace")
