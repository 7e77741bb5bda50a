"""What a person asks for, checked once, where it is read: spec files and the values of options.

Every check returns the value as the rest of gpuctl uses it, or raises InvalidInput with a sentence that
says what was found and what is allowed.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from inventories.bastion import read_bastion
from inventories.did_you_mean import did_you_mean
from inventories.errors import InvalidInput
from inventories.specs.gpu_driver import check_driver
from inventories.specs.setup_steps import SetupStep, read_setup
from inventories.specs.spec import DEFAULT_CLUSTER, LEAST_TTL_S, Spec
from inventories.yaml_source import Keys, Problems, Source, read, shown

MAX_COUNT = 1000
MAX_DISK_GB = 1_000_000
MAX_STOP_GRACE_S = 24 * 3600.0

_CLUSTER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_DURATION = re.compile(r"([0-9]{1,9}(\.[0-9]{1,9})?[smhd])+")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def check_cluster_name(name: object) -> str:
    """A cluster's name: it becomes a folder, a tag and a part of host names."""
    if isinstance(name, str) and _CLUSTER_NAME.fullmatch(name):
        return name
    raise InvalidInput(
        f"Cluster name {shown(name)} can't be used: a name is 1 to 40 of a-z, 0-9 and '-', "
        "and begins and ends with a letter or digit."
    )


def check_count(count: object) -> int:
    """A number of machines."""
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
    """A number of machines that stay where nothing runs: 0 is one."""
    return 0 if count == 0 and isinstance(count, int) and not isinstance(count, bool) else check_count(count)


def check_limits(spec: Spec) -> Spec:
    """The spec, where its `min` and `max` go together. Raises InvalidInput."""
    least, most = spec.min_count, spec.max_count
    if least is not None and most is None:
        raise InvalidInput(f"--min {least} needs --max: how many machines a run may start.")
    if most is None:
        return spec
    if (least or 0) > most:
        raise InvalidInput(f"--min {least} is more than --max {most}: turn them around.")
    return replace(spec, min_count=least or 0)


def parse_duration_s(text: object, option: str = "") -> float:
    """Return `90s`, `30m`, `4h`, `1d` or a sum such as `1h30m`, in seconds. Raises InvalidInput.

    `option`: the one that was typed, which the error names.
    """
    if isinstance(text, str) and _DURATION.fullmatch(text.strip()):
        parts = re.findall(r"([\d.]+)([smhd])", text)
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
        if seconds > 0:
            return seconds
    if option and isinstance(text, str):
        example = f"{text}s" if re.fullmatch(r"[0-9]*[1-9][0-9]*", text) else "30m"
        raise InvalidInput(
            f"{option} {shown(text)} can't be used: a duration is a number above 0 with its unit s, m, h or d. For "
            f"example: {option} {example}"
        )
    raise InvalidInput(
        f"Duration {shown(text)} can't be used: a duration is a number above 0 with its unit s, m, h or d, "
        "as in 90s, 30m, 4h or 1d."
    )


def check_stop_grace_s(text: object) -> float:
    """How long ranks get to save before SIGKILL, in seconds; `0s`: none."""
    seconds = 0.0 if text in ("0", "0s") else parse_duration_s(text, "--stop-grace")
    if seconds <= MAX_STOP_GRACE_S:
        return seconds
    raise InvalidInput(f"A --stop-grace of {text} is too long: give at most {MAX_STOP_GRACE_S / 3600:.0f}h.")


def check_ttl_s(text: object) -> float:
    """How long machines live, in seconds: long enough to boot."""
    seconds = parse_duration_s(text, "--ttl")
    if seconds < LEAST_TTL_S:
        raise InvalidInput(
            f"A --ttl of {text} ends before the machines have booted: give {LEAST_TTL_S / 60:.0f}m or more."
        )
    return seconds


def check_cidr(text: object) -> str:
    """A range of addresses, IPv4 or IPv6; a single address is a range of one."""
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
    """A disk's size, GB."""
    if isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_DISK_GB:
        return size
    raise InvalidInput(
        f"Disk size {shown(size)} can't be used: a size is a whole number of GB above 0 and at most {MAX_DISK_GB}."
    )


def check_max_cost_usd(amount: object) -> float:
    """The most that something may cost, USD."""
    if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < float("inf"):
        return float(amount)
    raise InvalidInput(f"Cost {shown(amount)} can't be used: a cost is a number of US dollars above 0.")


def check_port(port: object) -> int:
    """A TCP port."""
    if isinstance(port, int) and not isinstance(port, bool) and 1 <= port <= 65535:
        return port
    raise InvalidInput(f"Port {shown(port)} can't be used: a port is a whole number from 1 to 65535.")


def check_bastion(text: object) -> str:
    """A bastion, in the form in which `inventories.bastion` writes it."""
    return str(read_bastion(text.strip() if isinstance(text, str) else text))


def check_python(path: object) -> str:
    """An interpreter on the machines."""
    if isinstance(path, str) and path.startswith("/") and "\n" not in path:
        return path
    raise InvalidInput(
        f"Python {shown(path)} can't be used: it is the absolute path of an interpreter on the machines, "
        "as in /usr/bin/python3.12."
    )


def check_option(field: str, value: object) -> Any:  # noqa: ANN401 - a field's type is its own
    """The value of an option that sets a field of Spec, checked as in a spec file; a path is left as it is."""
    if isinstance(value, Path):
        return value
    return _OPTION_CHECKS[field](value)


def spec_keys() -> dict[str, str]:
    """Every key of a spec file, as `network.subnet_id` where it is nested → the field of Spec that it sets."""
    top = {key: field for key, (field, _) in _SPEC_KEYS.items()}
    nested = {f"{_NETWORK}.{key}": field for key, (field, _) in _NETWORK_KEYS.items()}
    return top | {_SETUP: _SETUP} | nested


def read_spec(path: Path, *, default: str = DEFAULT_CLUSTER) -> Spec:
    """The spec file of `gpuctl up -f`, or the spec within a job's file: what its `cluster` holds.

    `default`: the cluster's name, where the file has none. Raises InvalidInput with a line for each problem in it.
    """
    source = read(path)
    problems = Problems(path)
    at = (CLUSTER,) if holds_job(source.data) else ()
    spec = spec_at(source, at, problems, default=default)
    problems.raise_if_any()
    return spec


def holds_job(data: object) -> bool:
    """Whether a file's values are a job's, whose `cluster` holds keys, and not a spec's."""
    return isinstance(data, dict) and isinstance(data.get(CLUSTER), dict)


def spec_at(source: Source, at: Keys, problems: Problems, *, default: str = DEFAULT_CLUSTER) -> Spec:
    """The spec that the keys `at` lead to. What is wrong is added to `problems`."""
    values = _values(source, at, (), problems)
    if "hosts" in values:
        values["hosts"] = source.path.absolute().parent / values["hosts"]
    return Spec(**{CLUSTER: default, **values})


def _values(source: Source, at: Keys, within: Keys, problems: Problems) -> dict[str, Any]:
    """Field of Spec → value, out of the mapping at `within` of the spec, which is at `at`.

    What is wrong is added to `problems`.
    """
    keys = (*at, *within)
    mapping = source.value(*keys)
    known = _NETWORK_KEYS if within else _SPEC_KEYS
    allowed = ", ".join(known if within else [*_SPEC_KEYS, _SETUP, _NETWORK])
    what = f"key '{'.'.join(map(str, keys))}'" if keys else "the spec"
    if not isinstance(mapping, dict):
        found = "is empty" if mapping is None else f"holds {shown(mapping)}"
        text = f"{what} {found}; it should be keys with values. Allowed: {allowed}."
        problems.add(source.line(*keys), text)
        return {}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        line, name = source.line(*keys, key), ".".join(map(str, (*keys, key)))
        if not within and key == _NETWORK:
            values |= _values(source, at, (_NETWORK,), problems)
        elif not within and key == _SETUP:
            values[_SETUP] = _setup(source, at, value, problems)
        elif key in known:
            field, check = known[key]
            try:
                values[field] = check(value)
            except InvalidInput as error:
                problems.add(line, f"key '{name}': {error}")
        else:
            problems.add(line, f"key '{name}' is not known{_hint(key, within)} Allowed: {allowed}.")
    return values


def _setup(source: Source, at: Keys, value: object, problems: Problems) -> tuple[SetupStep, ...]:
    def add(item: Keys, text: str) -> None:
        problems.add(source.line(*at, _SETUP, *item), f"key '{'.'.join(map(str, (*at, _SETUP)))}': {text}")

    return read_setup(value, add, source.path.absolute().parent)


def _hint(key: str, keys: Keys) -> str:
    """The end of a sentence about a key that is not known at `keys`."""
    elsewhere, there = (_SPEC_KEYS, "at the top") if keys else (_NETWORK_KEYS, f"under '{_NETWORK}'")
    if key in elsewhere:
        return f" here; put it {there}."
    return did_you_mean(key, _NETWORK_KEYS if keys else [*_SPEC_KEYS, _SETUP, _NETWORK]) or "."


def _text(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise InvalidInput(f"{shown(value)} can't be used: it should be text; put it in quotes if it is.")


def _word(value: object) -> str:
    text = _text(value)
    if text.isprintable() and not re.search(r"\s", text) and not text.startswith("-"):
        return text
    raise InvalidInput(f"{shown(value)} can't be used: it should be one word that does not begin with '-'.")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidInput(f"{shown(value)} can't be used: it should be true or false.")


def _path(value: object) -> Path:
    text = _text(value)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InvalidInput(f"{shown(text)} can't be used: that user's home folder is not known.") from error


_SPEC_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cluster": ("cluster", check_cluster_name),
    "provider": ("provider", _text),
    "shape": ("shape", _text),
    "count": ("count", check_count),
    "min": ("min_count", check_min_count),
    "max": ("max_count", check_count),
    "region": ("region", _text),
    "compartment": ("compartment", _word),
    "profile": ("profile", _text),
    "context": ("context", _text),
    "image": ("image", _text),
    "driver": ("driver", check_driver),
    "disk_gb": ("disk_gb", check_disk_gb),
    "spot": ("spot", _flag),
    "ssh_cidr": ("ssh_cidr", check_cidr),
    "ttl": ("ttl_s", check_ttl_s),
    "max_cost_usd": ("max_cost_usd", check_max_cost_usd),
    "hosts": ("hosts", _path),
    "python": ("python", check_python),
}
"""Key of the file → field of Spec, and its check."""

CLUSTER = "cluster"
"""A cluster's name in a spec; in a job's file the key that holds the spec."""
_NETWORK = "network"
"""The one key that holds keys of its own."""
_SETUP = "setup"
"""The one key that holds a list."""

_NETWORK_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "subnet_id": ("subnet_id", _word),
    "public_ip": ("public_ip", _flag),
    "bastion": ("bastion", check_bastion),
    "ssh_port": ("ssh_port", check_port),
}
"""The same under `network`."""

_OPTION_CHECKS: dict[str, Callable[[Any], Any]] = dict((_SPEC_KEYS | _NETWORK_KEYS).values())
"""Field of Spec → its check."""
