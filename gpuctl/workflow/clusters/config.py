"""`config`: show and change the user's configuration."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.option_table.values import notify_targets
from gpuctl.text import with_tilde
from inventories.disk import files
from inventories.errors import InvalidInput
from inventories.option import Option
from inventories.specs.config import NAME, config_keys, with_value
from inventories.text import did_you_mean
from inventories.yaml_source import read
from remote.shared.notify.target import parse, shown

NOTIFY = "notify"


def rows(app: App, key: str | None = None) -> list[tuple[str, str, str]]:
    """Return key, value as it is written, and meaning of every key, or of one.

    Raises Usage for an unknown key, and InvalidInput for a file with a mistake.
    """
    values = _values(app)
    return [
        (key, _written(_without_secrets(key, values.get(key))), option.meaning.replace("`", ""))
        for key, option in _keys(key).items()
    ]


def document(app: App, key: str | None = None) -> dict[str, Any]:
    """Return the document of `config --json`, of every key or of one. Raises as `rows`."""
    values = _values(app)
    return {
        "path": str(app.config_path),
        "values": {key: _without_secrets(key, values.get(key)) for key in _keys(key)},
    }


def change(app: App, key: str, words: Sequence[str]) -> None:
    """Set a key, or remove it without a word. Raises Usage and InvalidInput, and leaves the file as it was."""
    keys = _keys(key)
    values = [_typed(word) if keys[key].kind is float else word for word in words]
    if None in values:
        raise Usage(f"{key}: a value is empty. `gpuctl config unset {key}` removes the key.")
    value = (values[0] if len(values) == 1 else values) if values else None
    _ = app.config  # raises for a file with a mistake, which the change would keep
    if value is not None:
        try:
            checked = keys[key].read
            assert checked is not None, "each key has its check"
            checked(value)
            if key == NOTIFY:
                notify_targets(words)
        except (InvalidInput, Usage) as error:
            problem = str(error).replace(f"--{key}", key)  # the checks are those of options
            raise Usage(problem if key in problem else f"{key}: {problem}") from error
    path = app.config_path
    before = (files.read_bytes(path) or b"").decode()
    try:
        text = with_value(before, key, value)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    files.private_dir(path.parent)
    files.write_atomic(path.resolve(), text.encode())  # it may be a link into somebody's dotfiles
    app.__dict__.pop("config", None)
    text = _written(_without_secrets(key, value)) or "not set"
    app.output.say(f"{key}: {text} ({with_tilde(str(path))})")


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file, of draft 7, which editors know."""
    duration = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?[smhd])+$"}
    text = {"type": "string"}
    texts = {"anyOf": [text, {"type": "array", "items": text}]}
    types: dict[str, dict[str, Any]] = {
        "region": texts,
        "notify": texts,
        "ttl": duration,
        "idle": duration,
        "ssh_cidr": text,
    }
    money = {"type": "number", "exclusiveMinimum": 0}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": NAME,
        "description": "Limits on money, and defaults of new clusters.",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            key: types.get(key, money) | {"description": option.meaning}
            for key, option in config_keys().items()
        },
    }


def _keys(key: str | None) -> Mapping[str, Option]:
    """Return every key with its option, or one. Raises Usage for an unknown key."""
    keys = config_keys()
    if key is None:
        return keys
    if key not in keys:
        raise Usage(f"There is no key {key!r}{did_you_mean(key, keys) or '.'} Keys: {', '.join(keys)}.")
    return {key: keys[key]}


def _values(app: App) -> dict[str, Any]:
    """Return key → value as it is written. Raises InvalidInput for a file with a mistake."""
    _ = app.config
    return (read(app.config_path).data or {}) if app.config_path.exists() else {}


def _without_secrets(key: str, value: object) -> object:
    """Return a value as it may be shown: topics and webhooks are secrets."""
    if key != NOTIFY or value is None:
        return value
    texts = value if isinstance(value, list) else [value]
    try:
        return [text if text.startswith("@") else shown(parse(text)) for text in map(str, texts)]
    except ValueError as error:
        raise InvalidInput(f"{NAME}: {NOTIFY}: {error}.") from error


def _written(value: object) -> str:
    return "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _typed(word: str) -> object:
    """Return a number for a word that is one, as in the file."""
    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        return word
