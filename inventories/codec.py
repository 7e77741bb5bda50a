"""Frozen dataclasses to plain JSON and back, typed and strict.

JSON has no NaN and no infinity: such a number is written as null, and null reads back as `None` where the
field allows `None`, else as NaN.
"""

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from inventories.errors import CorruptFile, NewerFormat
from inventories.text import did_you_mean

T = TypeVar("T")

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

FORMAT = 1
"""The version of every file that gpuctl writes; it grows when an older gpuctl could not read the file."""


def to_json(obj: object) -> dict[str, Any]:
    """A dataclass as a dictionary of plain JSON types. A field `from_` becomes `from`, which Python reserves."""
    assert dataclasses.is_dataclass(obj), f"{type(obj).__name__} is no dataclass"
    values = {field: getattr(obj, field.name) for field in dataclasses.fields(obj)}
    return {
        _key(field): plain(value)
        for field, value in values.items()
        if value is not None or not field.metadata.get("omitted")
    }


OMITTED = {"omitted": True}
"""Metadata of a field whose key is omitted where its value is `None`; it has a default."""


def key(name: str) -> dict[str, str]:
    """Metadata of a field whose key in files is not its name."""
    return {"key": name}


def _key(field: "dataclasses.Field[Any]") -> str:
    return str(field.metadata.get("key", field.name.removesuffix("_")))


def plain(value: object) -> Json:
    """Any value as JSON types: paths as text, sequences as lists, numbers that JSON lacks as `None`."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return to_json(value)


def from_json(cls: type[T], data: object, source: str, *, rebuild: str = "") -> T:
    """Return the dataclass `cls` from a document that `to_json` made. Keys that have a default may be missing.

    Raises CorruptFile, which names `source`, the key, the wrong value and the right kind, and ends with `rebuild`,
    whole sentences that say how to get a new file.
    """
    try:
        value = _build(cls, data, "")
    except _Mismatch as error:
        raise CorruptFile(f"'{source}' can't be used: {error}. {rebuild}".rstrip()) from error
    assert isinstance(value, cls)
    return value


def dump(obj: object) -> bytes:
    """A dataclass as the text of a file, the format's version first."""
    document = {"format": FORMAT, **to_json(obj)}
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def load(cls: type[T], text: bytes, source: str, *, rebuild: str = "") -> T:
    """The dataclass `cls` out of a file that `dump` made. Raises CorruptFile and NewerFormat."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        cut = "it is empty" if not text.strip() else f"it is cut off or no JSON ({error})"
        raise CorruptFile(f"'{source}' can't be used: {cut}. {rebuild}".rstrip()) from error
    if not isinstance(data, dict):
        raise CorruptFile(
            f"'{source}' can't be used: it holds {_described(data)}, no object. {rebuild}".rstrip()
        )
    check_format(data.pop("format", None), source, rebuild=rebuild)
    return from_json(cls, data, source, rebuild=rebuild)


def check_format(version: object, source: str, *, rebuild: str = "") -> None:
    """Raise unless this gpuctl reads files of that version: NewerFormat, or CorruptFile for nonsense."""
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise CorruptFile(
            f"'{source}' can't be used: key 'format' should be {FORMAT}, "
            f"but is {_described(version)}. {rebuild}".rstrip()
        )
    if version > FORMAT:
        raise NewerFormat(
            f"'{source}' was written by a newer gpuctl (format {version}; this one reads up to {FORMAT}). "
            "Upgrade gpuctl."
        )


class _Mismatch(ValueError):
    """A value that its type doesn't allow; the message is a clause."""


def _build(cls: Any, data: object, where: str) -> object:  # noqa: ANN401 (a type)
    if not isinstance(data, dict):
        raise _wrong(where, "an object", data)
    hints, fields = _fields_of(cls)
    for key in data:
        if key not in fields:
            raise _Mismatch(f"key '{_join(where, str(key))}' is not known{did_you_mean(str(key), fields)}")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in data:
            values[field.name] = _value(hints[field.name], data[name], _join(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _Mismatch(f"key '{_join(where, name)}' is missing")
    return cls(**values)


@cache
def _fields_of(cls: Any) -> "tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]":  # noqa: ANN401 (a type)
    """A class's types by field, and its fields by key: found once, as a file may hold thousands."""
    return get_type_hints(cls), {_key(field): field for field in dataclasses.fields(cls)}


def _value(hint: object, data: object, where: str) -> object:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        if args == (int, float):
            return data if type(data) is int else _value(float, data, where)
        (inner,) = [arg for arg in args if arg is not type(None)]
        return _value(inner, data, where)
    if origin is Literal:
        if data not in args:
            raise _wrong(where, "one of " + ", ".join(map(repr, args)), data)
        return data
    if origin is tuple:
        if not isinstance(data, list):
            raise _wrong(where, "a list", data)
        return tuple(_value(args[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise _wrong(where, "an object", data)
        return {key: _value(args[1], item, _join(where, key)) for key, item in data.items()}
    if dataclasses.is_dataclass(hint):
        return _build(hint, data, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(data)
        except ValueError:
            known = ", ".join(repr(member.value) for member in hint)
            raise _wrong(where, f"one of {known}", data) from None
    return _scalar(hint, data, where)


def _scalar(hint: object, data: object, where: str) -> object:
    if hint is Any:
        return data
    if hint is float and data is None:
        return math.nan
    if hint is float and isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data):
        return float(data)
    if hint is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if hint is bool and isinstance(data, bool):
        return data
    if hint is str and isinstance(data, str):
        return data
    if hint is Path and isinstance(data, str):
        return Path(data)
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text", Path: "a path"}
    assert hint in names, f"the codec has no rule for {hint}"
    raise _wrong(where, names[hint], data)


def _wrong(where: str, expected: str, data: object) -> _Mismatch:
    subject = f"key '{where}'" if where else "it"
    return _Mismatch(f"{subject} should be {expected}, but is {_described(data)}")


def _described(data: object) -> str:
    text = json.dumps(data, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
