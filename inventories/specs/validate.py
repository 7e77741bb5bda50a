"""Spec files: the description of a cluster that a person writes, read and checked at once."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from inventories.errors import InvalidInput
from inventories.option import Option, options_of
from inventories.specs.setup_steps import read_setup
from inventories.specs.spec import DEFAULT_CLUSTER, Spec
from inventories.text import did_you_mean, shown
from inventories.yaml_source import Keys, Problems, Source, read

CLUSTER = "cluster"
"""A cluster's name in a spec; in a job's file the key that holds the spec."""
_NETWORK = "network"
"""The one key that holds keys of its own."""
_SETUP = "setup"
"""The one key that holds a list."""


def check_limits(spec: Spec) -> Spec:
    """Return the spec. Raises InvalidInput for `min` and `max` that exclude each other."""
    lowest, highest = spec.min_count, spec.max_count
    if lowest is not None and highest is None:
        raise InvalidInput(f"--min {lowest} needs --max: how many machines a run may start.")
    if highest is None:
        return spec
    if (lowest or 0) > highest:
        raise InvalidInput(f"--min {lowest} is more than --max {highest}: turn them around.")
    return replace(spec, min_count=lowest or 0)


def check_option(field: str, value: object) -> Any:  # noqa: ANN401 - a field's type is its own
    """Return the value of an option that sets a field of Spec, checked as in a spec file."""
    return _checked(next(option for option in options_of(Spec) if option.name == field), value)


def _checked(option: Option, value: object) -> Any:  # noqa: ANN401 - a field's type is its own
    return value if option.read is None else option.read(value)


def spec_keys() -> dict[str, Option]:
    """Return every key of a spec file, such as `network.subnet_id`, with the option that declares it."""
    keys = {option.key: option for option in options_of(Spec) if option.key}
    return dict(sorted(keys.items(), key=lambda item: item[0].startswith(_NETWORK)))


@cache
def _keys(within: Keys) -> dict[str, Option]:
    """Return the keys at the top of a spec, or the keys under `network`."""
    prefix = f"{_NETWORK}." if within else ""
    return {
        key.removeprefix(prefix): option
        for key, option in spec_keys().items()
        if key.startswith(prefix) and "." not in key.removeprefix(prefix)
    }


def read_spec(path: Path, *, default: str = DEFAULT_CLUSTER) -> Spec:
    """Return the spec of a file for `gpuctl up -f`, or of the key `cluster` of a job's file.

    `default`: the cluster's name if the file does not name it. Raises InvalidInput with a line for each problem.
    """
    source = read(path)
    problems = Problems(path)
    at = (CLUSTER,) if holds_job(source.data) else ()
    spec = spec_at(source, at, problems, default=default)
    problems.raise_if_any()
    return spec


def holds_job(data: object) -> bool:
    """Return whether a file's values are a job's, in which `cluster` holds keys, and not a spec's."""
    return isinstance(data, dict) and isinstance(data.get(CLUSTER), dict)


def spec_at(source: Source, at: Keys, problems: Problems, *, default: str = DEFAULT_CLUSTER) -> Spec:
    """Return the spec that the keys `at` lead to, and add each mistake to `problems`."""
    values = _values(source, at, (), problems)
    if "hosts" in values:
        values["hosts"] = source.path.absolute().parent / values["hosts"]
    return Spec(**{CLUSTER: default, **values})


def _values(source: Source, at: Keys, within: Keys, problems: Problems) -> dict[str, Any]:
    """Return field of Spec → value for the mapping at `within` of the spec, which is at `at`.

    Add each mistake to `problems`.
    """
    keys = (*at, *within)
    mapping = source.value(*keys)
    known = _keys(within)
    allowed = ", ".join(known if within else [*known, _NETWORK])
    subject = f"key '{'.'.join(map(str, keys))}'" if keys else "the spec"
    if not isinstance(mapping, dict):
        content = "is empty" if mapping is None else f"holds {shown(mapping)}"
        text = f"{subject} {content}; it should be keys with values. Allowed: {allowed}."
        problems.add(source.line(*keys), text)
        return {}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        line, name = source.line(*keys, key), ".".join(map(str, (*keys, key)))
        if not within and key == _NETWORK:
            values |= _values(source, at, (_NETWORK,), problems)
        elif not within and key == _SETUP:

            def add(item: Keys, text: str) -> None:
                problems.add(
                    source.line(*at, _SETUP, *item), f"key '{'.'.join(map(str, (*at, _SETUP)))}': {text}"
                )

            values[_SETUP] = read_setup(value, add, source.path.absolute().parent)
        elif key in known:
            try:
                values[known[key].name] = _checked(known[key], value)
            except InvalidInput as error:
                problems.add(line, f"key '{name}': {error}")
        else:
            problems.add(line, f"key '{name}' is not known{_hint(key, within)} Allowed: {allowed}.")
    return values


def _hint(key: str, keys: Keys) -> str:
    """Return the end of a sentence about a key that is not known at `keys`."""
    elsewhere, place = (_keys(()), "at the top") if keys else (_keys((_NETWORK,)), f"under '{_NETWORK}'")
    if key in elsewhere:
        return f" here; put it {place}."
    return did_you_mean(key, _keys(keys) if keys else [*_keys(()), _NETWORK]) or "."
