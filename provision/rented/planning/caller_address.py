"""The address ranges that reach SSH: the requested ones, else the public address of this computer."""

import http.client
import ipaddress
import os
import urllib.error
import urllib.request

from inventories.errors import InvalidInput
from inventories.threads import within
from provision.findings import Finding

ADDRESS_URL = "https://checkip.amazonaws.com"
"""A service that answers with the caller's address and nothing else."""
ADDRESS_URL_VARIABLE = "GPUCTL_ADDRESS_URL"
"""Variable with another such service, for networks that can't reach the default."""
ASK_TIMEOUT_S = 4.0
IN_ALL_S = 8.0
"""Deadline, with the time of the name service, also for an answer that comes byte by byte."""
LONGEST_ANSWER = 64

YOUR_ADDRESS = "<your address>/32"
"""Placeholder in a plan for an unknown address."""

_ADVICE = "Say who may reach SSH with --ssh-cidr, as in --ssh-cidr 203.0.113.7/32."


class AddressUnknown(InvalidInput):
    """The public address of this computer is not known. `why`: the reason, as a clause."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The address that this computer is seen with is not known: {why}. {_ADVICE}")
        self.why = why


def caller_cidrs(requested: str | None, *, url: str | None = None) -> tuple[str, ...]:
    """Return the address ranges that reach SSH: the requested one, else the public address of this computer.

    `url`: the service for that; by default the environment's, else ADDRESS_URL. Raises AddressUnknown if it gives
    no address, and InvalidInput if the environment's value is no web address.
    """
    if requested is not None:
        return (requested,)
    url = url or os.environ.get(ADDRESS_URL_VARIABLE) or ADDRESS_URL
    if not url.startswith(("https://", "http://")):
        raise InvalidInput(
            f"{url!r} can't be asked for this computer's address: it is no web address. {_ADVICE}"
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


def planned_cidrs(requested: str | None) -> tuple[tuple[str, ...], str]:
    """Return `caller_cidrs` for a plan: a placeholder for an unknown address, with the reason."""
    try:
        return caller_cidrs(requested), ""
    except AddressUnknown as error:
        return (YOUR_ADDRESS,), error.why


def check(requested: str | None) -> Finding:
    """Return the finding of `doctor` on the address."""
    title = "your address"
    try:
        (cidr,) = caller_cidrs(requested)
    except AddressUnknown as error:
        fix = "Add `--ssh-cidr 203.0.113.7/32` to `up`, with the address that this computer is seen with."
        return Finding(what=title, ok=False, detail=f"not known: {error.why}", fix=fix)
    except InvalidInput as error:
        problem, _, fix = str(error).partition(". ")
        return Finding(what=title, ok=False, detail=problem.rstrip("."), fix=fix)
    return Finding(what=title, ok=True, detail=f"`up` would let in SSH from {cidr}")


def _ask(url: str) -> str:
    """Return the start of a page's text, without a proxy, as SSH does not use one either."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ASK_TIMEOUT_S) as reply:
            data: bytes = reply.read(LONGEST_ANSWER)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise
    return data.decode("ascii", "replace")
