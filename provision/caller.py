"""From where SSH is let in: what was typed, else the address that this computer is seen with."""

import http.client
import ipaddress
import os
import urllib.error
import urllib.request

from inventories.deadline import within
from inventories.errors import InvalidInput

ADDRESS_URL = "https://checkip.amazonaws.com"
"""Answers with the caller's address and nothing else."""
ADDRESS_URL_VARIABLE = "GPUCTL_ADDRESS_URL"
"""Names another such service, for networks that can't reach ours."""
ASK_TIMEOUT_S = 5.0
IN_ALL_S = 15.0
"""With the name service's time, and where the answer comes byte by byte."""
LONGEST_ANSWER = 64

_WAY_OUT = "Say who may reach SSH with --ssh-cidr, as in --ssh-cidr 203.0.113.7/32."


def caller_cidrs(asked: str | None, *, url: str | None = None) -> tuple[str, ...]:
    """The address ranges from which SSH is let in.

    `asked`, a checked range, is taken as it is: the whole world only where it was typed. With None, the
    service at `url`, at the one that the environment names, or at ADDRESS_URL is asked, at most
    IN_ALL_S long, and its answer becomes a range of one. Raises InvalidInput where it gives none.
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
        raise InvalidInput(
            f"The address that this computer is seen with is not known: {url} does not tell ({reason}). {_WAY_OUT}"
        ) from error
    try:
        address = ipaddress.ip_address(answer.strip())
    except ValueError as error:
        raise InvalidInput(
            f"The address that this computer is seen with is not known: {url} answered {answer[:40]!r}, "
            f"which is no address. {_WAY_OUT}"
        ) from error
    if address.is_unspecified or address.is_multicast:
        raise InvalidInput(f"{url} says that this computer is seen as {address}, which can't be. {_WAY_OUT}")
    return (str(ipaddress.ip_network(address)),)


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
