"""Programs of the user's own (credential plug-ins, proxy commands): how they end, and text that is safe to print."""

import os
import re
import shlex
from contextlib import suppress

SHOWN = 300
"""Characters of a line."""
_SECRETS = re.compile(
    r"secret|pass|token|credential|bearer|\bauth|authorization|(?<!host)key(?!checking)|://[^/\s]*@",
    re.IGNORECASE,
)
"""In commands that may hold a secret: names of options and variables, headers, and a login in an address."""


def signal_group(group: int, number: int) -> None:
    """Send a signal to the processes of a group, if the group still exists."""
    # macOS answers PermissionError for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def without_secrets(command: str) -> str:
    """Return a command to print: whole, or the program's name with `…` where a word may be a secret."""
    if not _SECRETS.search(command):
        return command
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    name = next((word for word in words if "=" not in word), "")
    return f"{shlex.quote(name)} …" if name and "://" not in name else "…"


def printable(text: str) -> str:
    """Return a text without characters that could steer a terminal."""
    return "".join(sign for sign in text if sign.isprintable())


def last_line(text: str) -> str:
    """Return the last line that is not empty, as `printable`."""
    lines = [printable(line).strip() for line in text.splitlines()]
    return next((line[:SHOWN] for line in reversed(lines) if line), "")
