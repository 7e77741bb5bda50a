"""The package indexes of a person's settings here: carried to the nodes' installers. Pure.

The values may hold passwords. They go to a node over the connection's standard input, are set for its installers
alone, and are in no log, no command line, and no file.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from remote.python_env.project_files import BadRequirements

NAMES = frozenset({
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX_STRATEGY",
    "UV_INSECURE_HOST", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_TRUSTED_HOST",
})  # fmt: skip
LOGIN = re.compile(r"UV_INDEX_[A-Z0-9_]+_(?:USERNAME|PASSWORD)")
"""A login of an index that uv knows by name."""
PLACES = NAMES - {"UV_INDEX_STRATEGY", "UV_INSECURE_HOST", "PIP_NO_INDEX", "PIP_TRUSTED_HOST"}
"""Settings whose values are addresses, and folders."""


def carried(environment: Mapping[str, str], *, same_machine: bool) -> dict[str, str]:
    """The variables for the nodes' installers, among the ones of this computer.

    Of lists only the addresses that a node can have: a folder or a server of this computer is left out, unless the
    nodes are hosts on this machine. Raises BadRequirements for an address that can't be read.
    """
    variables = {}
    for name, value in environment.items():
        if name not in NAMES and not LOGIN.fullmatch(name):
            continue
        if name in PLACES and not same_machine:
            separator = "," if name == "UV_FIND_LINKS" else " "
            try:
                value = separator.join(word for word in re.split(r"[\s,]+", value) if _is_elsewhere(word))
            except ValueError:  # its words would show a password
                raise BadRequirements(
                    f"{name} has an address that can't be read. In a login, write %5B for [ and %5D for ]."
                ) from None
        if value:
            variables[name] = value
    if "PIP_NO_INDEX" in variables and not same_machine and "PIP_FIND_LINKS" not in variables:
        del variables["PIP_NO_INDEX"]
    return variables


def _is_elsewhere(place: str) -> bool:
    """Return whether an index, perhaps with a name in front, is at an address that other machines can reach, too."""
    parts = urlsplit(re.sub(r"^[\w.-]+=(?=https?:)", "", place))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    try:
        return not ip_address(parts.hostname).is_loopback
    except ValueError:
        return parts.hostname != "localhost"
