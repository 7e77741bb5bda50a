"""Checks of values that a person gives, as an option or in a file.

Every check returns the value as the rest of gpuctl uses it, or raises InvalidInput with a sentence that names the
value and the allowed values.
"""

import ipaddress
import math
import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from inventories.address import read_bastion
from inventories.errors import InvalidInput
from inventories.text import shown

MAX_COUNT = 1000
MAX_DISK_GB = 1_000_000
MAX_STOP_GRACE_S = 24 * 3600.0
MAX_KEEP_S = 24 * 3600.0
NO_LIMIT_S = math.inf
"""The value of `--ttl none` and `--idle none`, in place of a default of the user's configuration."""
MIN_TTL_S = 600.0
"""With a shorter time, machines end before they have booted."""

_CLUSTER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_DURATION = re.compile(r"([0-9]{1,9}(\.[0-9]{1,9})?[smhd])+")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def check_cluster_name(name: object) -> str:
    """Return a cluster's name, which becomes a folder, a tag and a part of host names."""
    if isinstance(name, str) and _CLUSTER_NAME.fullmatch(name):
        return name
    raise InvalidInput(
        f"Cluster name {shown(name)} can't be used: a name is 1 to 40 of a-z, 0-9 and '-', "
        "and begins and ends with a letter or digit."
    )


def check_count(count: object) -> int:
    """Return a number of machines."""
    if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= MAX_COUNT:
        return count
    if isinstance(count, str) and count.strip().isdecimal():
        raise InvalidInput(
            f"Count {shown(count)} can't be used: in quotes it is text. Write it without them, as a whole number "
            f"from 1 to {MAX_COUNT}."
        )
    ending = " `gpuctl down` removes a cluster." if count == 0 and count is not False else ""
    raise InvalidInput(
        f"Count {shown(count)} can't be used: a count of machines is a whole number "
        f"from 1 to {MAX_COUNT}.{ending}"
    )


def check_min_count(count: object) -> int:
    """Return a number of machines that stay between runs, which may be 0."""
    return 0 if count == 0 and isinstance(count, int) and not isinstance(count, bool) else check_count(count)


def parse_duration_s(text: object, option: str = "", unit: str = "s") -> float:
    """Return `90s`, `30m`, `4h`, `1d` or a sum such as `1h30m`, in seconds. Raises InvalidInput.

    `option`: the one that was typed, which the error names. `unit`: of its usual values, for the error's example.
    """
    if isinstance(text, str) and _DURATION.fullmatch(text.strip()):
        parts = re.findall(r"([\d.]+)([smhd])", text)
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
        if seconds > 0:
            return seconds
    if option and isinstance(text, str):
        example = f"{text}{unit}" if re.fullmatch(r"[0-9]*[1-9][0-9]*", text) else "30m"
        raise InvalidInput(
            f"{option} {shown(text)} can't be used: a duration is a number above 0 with its unit s, m, h or d. For "
            f"example: {option} {example}"
        )
    raise InvalidInput(
        f"Duration {shown(text)} can't be used: a duration is a number above 0 with its unit s, m, h or d, "
        "as in 90s, 30m, 4h or 1d."
    )


def check_stop_grace_s(text: object) -> float:
    """Return the seconds that ranks have to save before SIGKILL, which may be 0."""
    seconds = 0.0 if text in ("0", "0s") else parse_duration_s(text, "--stop-grace")
    if seconds <= MAX_STOP_GRACE_S:
        return seconds
    raise InvalidInput(f"A --stop-grace of {text} is too long: give at most {MAX_STOP_GRACE_S / 3600:.0f}h.")


def check_ttl_s(text: object) -> float:
    """Return the seconds that machines live, long enough to boot; NO_LIMIT_S for `none`."""
    seconds = NO_LIMIT_S if text == "none" else parse_duration_s(text, "--ttl", "h")
    if seconds < MIN_TTL_S:
        raise InvalidInput(
            f"A --ttl of {text} ends before the machines have booted: give {MIN_TTL_S / 60:.0f}m or more."
        )
    return seconds


def check_texts(values: object) -> tuple[str, ...]:
    """Return texts of a list."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput(f"{shown(values)} is not possible here: give a list, each item after '- '.")
    return tuple(check_text(value) for value in values)


def check_idle_s(text: object) -> float:
    """Return the seconds without use after which machines end, long enough to boot; NO_LIMIT_S for `none`."""
    seconds = NO_LIMIT_S if text == "none" else parse_duration_s(text, "--idle", "m")
    if seconds < MIN_TTL_S:
        raise InvalidInput(
            f"An --idle of {text} ends machines while they are set up: give {MIN_TTL_S / 60:.0f}m or more."
        )
    return seconds


def check_keep_s(text: object) -> float:
    """Return the seconds for which unused machines stay."""
    seconds = parse_duration_s(text, "keep")
    if seconds > MAX_KEEP_S:
        raise InvalidInput(
            f"A keep of {text} is too long: give at most {MAX_KEEP_S / 3600:.0f}h, and repeat it later."
        )
    return seconds


def check_cidr(text: object) -> str:
    """Return a range of addresses, IPv4 or IPv6. A single address is a range, too."""
    try:
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is no text")
        return str(ipaddress.ip_network(text.strip()))
    except ValueError as error:
        raise InvalidInput(
            f"Address range {shown(text)} can't be used ({error}): "
            "a range is written as in 203.0.113.7/32 or 10.0.0.0/16."
        ) from error


def check_disk_gb(size: object) -> int:
    """Return the size of a disk, GB."""
    if isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_DISK_GB:
        return size
    raise InvalidInput(
        f"Disk size {shown(size)} can't be used: a size is a whole number of GB above 0 and at most {MAX_DISK_GB}."
    )


def check_max_cost_usd(amount: object) -> float:
    """Return the maximum cost, USD."""
    if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < float("inf"):
        return float(amount)
    raise InvalidInput(f"Cost {shown(amount)} can't be used: a cost is a number of US dollars above 0.")


def check_port(port: object) -> int:
    """Return the number of a TCP port."""
    if isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= 65535:
        return port
    raise InvalidInput(f"Port {shown(port)} can't be used: a port is a whole number from 1 to 65535.")


def check_bastion(text: object) -> str:
    """Return a bastion as `inventories.bastion` writes it."""
    return str(read_bastion(text.strip() if isinstance(text, str) else text))


def check_python(path: object) -> str:
    """Return the path of an interpreter on the machines."""
    if isinstance(path, str) and path.startswith("/") and "\n" not in path:
        return path
    raise InvalidInput(
        f"Python {shown(path)} can't be used: it is the absolute path of an interpreter on the machines, "
        "as in /usr/bin/python3.12."
    )


def check_text(value: object) -> str:
    """Return a text without spaces around it."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise InvalidInput(f"{shown(value)} can't be used: it should be text; put it in quotes if it is.")


def check_word(value: object) -> str:
    """Return a word that no command takes for an option."""
    text = check_text(value)
    if text.isprintable() and not re.search(r"\s", text) and not text.startswith("-"):
        return text
    raise InvalidInput(f"{shown(value)} can't be used: it should be one word that does not begin with '-'.")


def check_flag(value: object) -> bool:
    """Return true or false."""
    if isinstance(value, bool):
        return value
    raise InvalidInput(f"{shown(value)} can't be used: it should be true or false.")


def check_path(value: object) -> Path:
    """Return a path, with the home folder for a `~`."""
    if isinstance(value, PathLike):
        return Path(value)
    text = check_text(value)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InvalidInput(f"{shown(text)} can't be used: that user's home folder is not known.") from error
