"""Addresses as people may see them, the same on both sides."""

import re

_LOGIN = re.compile(r"(\w://)[^/\s]+@")
"""A name or a password in an address."""


def without_logins(text: str) -> str:
    """Return a text without what logs in to the addresses in it."""
    return _LOGIN.sub(r"\1", text)
