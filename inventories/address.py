"""Addresses as they are written for SSH: `user@host`, `user@host:port`, `user@[IPv6]:port`.

The host may also be an alias of the user's own SSH configuration, and the user be left to that.
"""

import ipaddress
import re
from dataclasses import dataclass

from inventories.errors import InvalidInput
from inventories.text import shown

_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}"
_BASTION = re.compile(
    rf"((?P<user>{_WORD})@)?(?P<host>{_WORD}|\[(?P<address>[0-9A-Fa-f:.]+)\])(:(?P<port>[0-9]{{1,5}}))?"
)
_ADDRESS = re.compile(
    r"((?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^@\s\[\]]+?)(:(?P<port>[0-9]{1,5}))?"
)


@dataclass(frozen=True, kw_only=True)
class Address:
    """An address with the login and the port that may be written with it. `None`: as the SSH configuration says."""

    host: str
    """Name, alias or address, an IPv6 one without brackets."""
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")

    @property
    def name(self) -> str:
        """A host's name for a written address."""
        host = re.sub(r"[^A-Za-z0-9._-]", "-", self.host).strip("-")
        return host if self.port is None else f"{host}-{self.port}"


def read_address(text: str) -> Address:
    """Return the parts of `host`, `user@host`, `host:port`, `[IPv6]:port`. A text of another form is all host."""
    bare = text.rpartition("@")[2]
    user = text[: -len(bare) - 1] or None if "@" in text else None
    if is_ipv6(bare):
        return Address(host=bare, user=user)
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return Address(host=text)
    return _address(match)


def read_bastion(text: object) -> Address:
    """Return the bastion that a text names. Raises InvalidInput.

    An accepted text needs no quoting in a shell or an SSH configuration.
    """
    match = _BASTION.fullmatch(text) if isinstance(text, str) else None
    if match is not None and (match["address"] is None or is_ipv6(match["address"])):
        bastion = _address(match)
        if bastion.port is None or 1 <= bastion.port <= 65535:
            return bastion
    raise InvalidInput(
        f"Bastion {shown(text)} can't be used: it is written as in ubuntu@203.0.113.7, ubuntu@bastion.example:2222 "
        "or ubuntu@[2001:db8::7]:22."
    )


def is_ipv6(text: str) -> bool:
    """Return whether a text is an IPv6 address, without brackets."""
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _address(match: re.Match[str]) -> Address:
    port = None if match["port"] is None else int(match["port"])
    return Address(host=match["host"].strip("[]"), user=match["user"], port=port)
