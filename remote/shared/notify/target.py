"""Targets of notifications: `ntfy:TOPIC`, `slack:WEBHOOK`, `mail:ADDRESS`, `command:LINE`, or a URL.

A target may hold a secret: errors and `shown` leave it out.
"""

import base64
import ipaddress
import re
from typing import NamedTuple, Sequence
from urllib.parse import unquote, urlsplit

NTFY = "https://ntfy.sh/"
KINDS = ("ntfy", "slack", "mail", "command")
MAX_CHARS = 4000
FORMS = "give ntfy:TOPIC, slack:WEBHOOK, mail:ADDRESS, command:LINE or a URL"
_TOPIC = re.compile(r"[-_A-Za-z0-9]{1,64}")
_ADDRESS = re.compile(r"[^\s@<>,;:\"()]+@[^\s@<>,;:\"()]+")
_UNSAFE = re.compile(r"[^\x21-\x7e]")


class Target(NamedTuple):
    """A target of notifications."""

    kind: str
    """One of KINDS, or `url`."""
    address: str
    """A URL, a mail address, or a command line."""


def parse(text: str) -> Target:
    """Return the target that a text names. Raises ValueError with a sentence that shows no secret.

    parse("ntfy:my-topic")  # Target(kind="ntfy", address="https://ntfy.sh/my-topic")
    """
    kind, colon, rest = text.partition(":")
    if len(text) > MAX_CHARS:
        raise ValueError("{} is too long: {}".format(_begin_of(text), FORMS))
    if kind in ("http", "https"):
        return Target("url", _checked_url(text, "a URL"))
    if kind not in KINDS or not colon or not rest.strip():
        raise ValueError("{} is no target: {}".format(_begin_of(text), FORMS))
    if kind == "ntfy":
        url = rest if rest.startswith(("http://", "https://")) else NTFY + rest
        if not _TOPIC.fullmatch(url.partition("://")[2].partition("/")[2]):
            raise ValueError("ntfy: needs a topic of A-Z, a-z, 0-9, _ and -, or the URL of a server with one")
        return Target(kind, _checked_url(url, "ntfy:"))
    if kind == "slack":
        return Target(kind, _checked_url(rest, "slack:"))
    if kind == "mail" and not _ADDRESS.fullmatch(rest):
        raise ValueError("mail: needs one address, such as mail:you@example.org")
    return Target(kind, rest)


def _begin_of(text: str) -> str:
    """Return a word that is no target so that a person finds it, with as little as possible of a secret in it."""
    kind, colon, _ = text.partition(":")
    shown_chars = len(kind) + 1 if colon and kind.isalpha() and len(kind) < 10 else 3
    return "'{}{}'".format(text[:shown_chars], "…" if len(text) > shown_chars else "")


def _checked_url(url: str, subject: str) -> str:
    """Return the URL. Raises ValueError for a URL without a host, and for one that would send secrets unencrypted."""
    if not _names_server(url, ("http", "https")):
        raise ValueError("{} needs the URL of a server, such as https://example.org/path".format(subject))
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_private(parts.hostname or ""):
        raise ValueError("{} needs https:// for a server that is not on a private address".format(subject))
    login = [unquote(text) for text in (parts.username, parts.password) if text]
    if len(login) == 1 and _UNSAFE.search(login[0]):
        raise ValueError("{} needs a token of letters, digits and signs of ASCII".format(subject))
    return url


def _names_server(url: str, schemes: Sequence[str]) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
        (parts.hostname or "").encode("idna")  # as each connection does: a label has 1 to 63 characters
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname) and has_port and not _UNSAFE.search(url)


def check_mail_server(url: str) -> None:
    """Raise ValueError for a URL that names no mail server, with a sentence that shows no secret."""
    if not _names_server(url, ("smtp", "smtps")):
        raise ValueError(
            "mail: needs a mail server in GPUCTL_SMTP: export GPUCTL_SMTP=smtps://USER:PASSWORD@HOST, or smtp:// for "
            "STARTTLS"
        )


def key_of(secret: str) -> bytes:
    """Return the key of a secret for signatures: with `whsec_` its base64, as Standard Webhooks writes it.

    Raises ValueError with a sentence that does not show it.
    """
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret[len("whsec_") :], validate=True)
    except ValueError:
        raise ValueError("GPUCTL_NOTIFY_SECRET begins with whsec_, and base64 has to follow") from None


def is_private(host: str) -> bool:
    """Return whether a host is this machine, or an address of a private network."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_private
    except ValueError:
        return False


def shown(target: Target) -> str:
    """Return a target for records and people, without its secret: `slack:hooks.slack.com/…`."""
    if target.kind == "mail":
        return "mail:" + target.address
    if target.kind == "command":
        return "command:…"
    parts = urlsplit(target.address)
    host = "{}{}/…".format(parts.hostname, ":{}".format(parts.port) if parts.port else "")
    return "{}://{}".format(parts.scheme, host) if target.kind == "url" else "{}:{}".format(target.kind, host)
