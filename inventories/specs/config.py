"""The user's configuration, `config.yaml` under `$GPUCTL_HOME`: limits on money, and defaults of new clusters."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inventories.errors import InvalidInput
from inventories.option import Option, option, options_of
from inventories.specs.checks import check_cidr, check_idle_s, check_max_cost_usd, check_text, check_ttl_s
from inventories.text import did_you_mean, shown
from inventories.yaml_source import Problems, Source, parse, read

NAME = "config.yaml"


def read_texts(value: object) -> tuple[str, ...]:
    """Return texts: one, or a list."""
    return tuple(check_text(text) for text in (value if isinstance(value, list) else [value]))


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Config:
    """The values of the configuration. `None` or empty: not set."""

    max_hourly_usd: float | None = option(
        key="max_hourly_usd", read=check_max_cost_usd,
        meaning="US dollars an hour of everything that gpuctl has in your cloud accounts. `up` refuses more. "
        "Default: no limit.",
    )
    max_usd_per_month: float | None = option(
        key="max_usd_per_month", read=check_max_cost_usd,
        meaning="US dollars of everything in a calendar month (UTC): spent, and still to come until its end. `up` "
        "refuses more. Default: no limit.",
    )
    region: tuple[str, ...] = option(
        default=(), key="region", read=read_texts,
        meaning="Region of new clusters, or a list with a region for each cloud. Default: the one in the SDK's own "
        "configuration.",
    )
    ttl_s: float | None = option(
        key="ttl", read=check_ttl_s, kind=str,
        meaning="Time after which the machines of new clusters end, such as `8h`. Default: never.",
    )
    idle_s: float | None = option(
        key="idle", read=check_idle_s, kind=str,
        meaning="Time without use after which the machines of new clusters end, such as `30m`. Default: never.",
    )
    ssh_cidr: str | None = option(
        key="ssh_cidr", read=check_cidr,
        meaning="Addresses that may reach SSH on new clusters, such as `203.0.113.0/24`. Default: this computer's "
        "own address.",
    )
    notify: tuple[str, ...] = option(
        default=(), key="notify", read=read_texts,
        meaning="Target of `--notify`, such as `ntfy:TOPIC`, or a list: for new clusters, runs and `bench` that name "
        "no other. Default: no message.",
    )
# fmt: on

    @property
    def limited(self) -> bool:
        """Return whether it limits money."""
        return self.max_hourly_usd is not None or self.max_usd_per_month is not None


def config_keys() -> dict[str, Option]:
    """Return every key of the file, with its declaration."""
    return {option.key: option for option in options_of(Config)}


def with_value(text: str, key: str, value: object) -> str:
    """Return the file's text with another value of a key. All other lines stay. `None`: without the key.

    Raises InvalidInput for a key that a line does not hold with its whole value.
    """
    line = ""
    if value is not None:
        inline = yaml.safe_dump(value, default_flow_style=True, width=1000)
        inline = inline.removesuffix("\n").removesuffix("\n...")
        line = f"{key}: {inline}\n"
    lines = text.splitlines(keepends=True)
    key_at_begin = re.compile(rf"(['\"]?){re.escape(key)}\1\s*:")
    at = next((at for at, each in enumerate(lines) if key_at_begin.match(each)), None)
    if at is not None:
        lines[at] = line
    elif line:
        lines += ["\n"] * bool(lines and not lines[-1].endswith("\n")) + [line]
    changed = "".join(lines)
    values = {name: each for name, each in _values_in(text).items() if name != key}
    if _values_in(changed) != (values if value is None else values | {key: value}):
        raise InvalidInput(f"The value of '{key}' is not in one line of the file. Change it there yourself.")
    return changed


def _values_in(text: str) -> dict[str, Any]:
    try:
        return parse(text, Path(NAME)).data or {}
    except InvalidInput:
        return {"": None}  # no file's values are equal to that


def read_config(path: Path) -> Config:
    """Return the configuration. A missing file sets nothing. Raises InvalidInput with a line for each problem."""
    return Config() if not os.path.lexists(path) else config_of(read(path))


def config_of(source: Source) -> Config:
    """Return the configuration in a YAML document. Raises InvalidInput with a line for each problem."""
    problems = Problems(source.path)
    values: dict[str, Any] = {}
    keys = config_keys()
    if not isinstance(source.data, dict | None):
        problems.add(1, f"the file holds {shown(source.data)}; it should be keys with values.")
    for key, value in (source.data if isinstance(source.data, dict) else {}).items():
        if key not in keys:
            hint = did_you_mean(key, keys) or "."
            problems.add(source.line(key), f"key '{key}' is not known{hint} Allowed: {', '.join(keys)}.")
            continue
        read_value = keys[key].read
        assert read_value is not None, "each key has its check"
        try:
            values[keys[key].name] = read_value(value)
        except InvalidInput as error:
            problems.add(source.line(key), f"key '{key}': {error}")
    problems.raise_if_any()
    return Config(**values)
