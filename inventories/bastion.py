"""A bastion as it is written: `user@host`, `user@host:port`, `user@[IPv6]:port`.

The host may also be an alias of the user's own SSH configuration, and the user be left to that.
"""

import ipaddress
import re
from dataclasses import dataclass

from inventories.errors import InvalidInput
from inventories.shown import shown

_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}"
_FORM = re.compile(
    rf"((?P<user>{_WORD})@)?(?P<host>{_WORD}|\[(?P<address>[0-9A-Fa-f:.]+)\])(:(?P<port>[0-9]{{1,5}}))?"
)


@dataclass(frozen=True, kw_only=True)
class Bastion:
    """A host over which others are reached. `None`: as the user's own SSH configuration says."""

    host: str
    """Name, alias or address, an IPv6 one without brackets."""
    user: str | None
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


def read_bastion(text: object) -> Bastion:
    """Return the bastion that a text names. Raises InvalidInput.

    An accepted text needs no quoting in a shell or an SSH configuration.
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is not None:
        port = None if match["port"] is None else int(match["port"])
        if (port is None or 1 <= port <= 65535) and _is_address(match["address"]):
            return Bastion(host=match["address"] or match["host"], user=match["user"], port=port)
    raise InvalidInput(
        f"Bastion {shown(text)} can't be used: it is written as in ubuntu@203.0.113.7, ubuntu@bastion.example:2222 "
        "or ubuntu@[2001:db8::7]:22."
    )


def _is_address(text: str | None) -> bool:
    try:
        return text is None or ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
