"""Addresses as people may see them, the same on both sides."""

import re

_LOGIN = re.compile(r"(\w://)(?:[^/\s]+|[^/\s:@\[]*:(?!\d{1,5}/)[^\s@]+)@")
"""A name or a password in an address. A slash before the `@` is of a password only after a colon without a port."""


def without_logins(text: str) -> str:
    """Return a text without what logs in to the addresses in it."""
    return _LOGIN.sub(r"\1", text)
