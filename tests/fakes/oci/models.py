"""Check bodies against the SDK's own model classes: names, types, required fields, enumerations.

The classes are read once each, into small tables: `swagger_types` and `attribute_map` of an instance, the mark
`**[Required]**` of the properties' documentation, and `get_subtype` for models with a discriminator. The same tables
check clients' requests and the server's responses, so that it can't send a response that is impossible in the real
service.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from tests.fakes.oci.errors import ApiError, invalid, missing

_REQUIRED = "**[Required]**"
_ENUM = re.compile(r":param (\w+):\n(?:(?!:param ).)*?Allowed values for this property are: ([^\n]+)", re.S)
_DISCRIMINATOR = re.compile(r"object_dictionary\['(\w+)'\]")
_LIST = re.compile(r"list\[(.+)\]$")
_DICT = re.compile(r"dict\(\w+, (.+)\)$")
_PRIMITIVES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bytes": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "object": (object,),
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a model, by its name in JSON."""

    type: str
    required: bool
    allowed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model class of the SDK."""

    name: str
    fields: dict[str, Field]
    discriminator: str | None
    subtype: Callable[[dict[str, Any]], str] | None


@cache
def model(service: str, name: str) -> Model:
    """Return the table of a class such as `LaunchInstanceDetails` of a service such as `core`."""
    cls = getattr(importlib.import_module(f"oci.{service}.models"), name)
    sample = cls()
    allowed = {
        attribute: tuple(re.findall(r'"([^"]*)"', values))
        for attribute, values in _ENUM.findall(inspect.getdoc(cls.__init__) or "")
    }
    fields = {
        wire: Field(
            type=sample.swagger_types[attribute],
            required=_REQUIRED in (getattr(cls, attribute).__doc__ or ""),
            allowed=allowed.get(attribute, ()),
        )
        for attribute, wire in sample.attribute_map.items()
    }
    subtype = vars(cls).get("get_subtype")
    if subtype is None:
        return Model(name=name, fields=fields, discriminator=None, subtype=None)
    result = _DISCRIMINATOR.search(inspect.getsource(cls.get_subtype))
    assert result, f"{name}.get_subtype reads no field"
    return Model(name=name, fields=fields, discriminator=result[1], subtype=cls.get_subtype)


def check(service: str, value: Any, declared: str, where: str = "") -> None:
    """Raise the error that names the first field of `value` that is not of the declared type.

    A field that is null counts as one that is not there.
    """
    if listed := _LIST.match(declared):
        _expect(isinstance(value, list), where, declared)
        for at, item in enumerate(value):
            check(service, item, listed[1], f"{where}[{at}]")
    elif mapped := _DICT.match(declared):
        _expect(isinstance(value, dict), where, declared)
        for key, item in value.items():
            check(service, item, mapped[1], f"{where}.{key}" if where else key)
    elif declared in _PRIMITIVES:
        right = isinstance(value, _PRIMITIVES[declared])
        _expect(right and (declared in ("bool", "object") or not isinstance(value, bool)), where, declared)
    elif declared in ("datetime", "date"):
        _expect(isinstance(value, str) and _is_time(value), where, "date-time of RFC 3339")
    else:
        _check_model(service, value, model(service, declared), where)


def _check_model(service: str, value: Any, table: Model, where: str) -> None:
    _expect(isinstance(value, dict), where, table.name)
    prefix = f"{where}." if where else ""
    if table.subtype and table.discriminator:
        kind = value.get(table.discriminator)
        if kind is None:
            raise missing(f"{prefix}{table.discriminator} is required")
        subtype = table.subtype(value)
        if subtype == table.name:
            raise invalid(f"{prefix}{table.discriminator} is not one of the known types: {kind}")
        table = model(service, subtype)
        if table.subtype and table.discriminator:
            _check_model(service, value, table, where)
            return
    for name, item in value.items():
        field = table.fields.get(name)
        if field is None:
            raise invalid(f"{prefix}{name} is not a field of {table.name}")
        if item is None:
            continue
        check(service, item, field.type, prefix + name)
        if field.allowed and isinstance(item, str) and item not in field.allowed:
            raise invalid(f"{prefix}{name} is '{item}', not one of: {', '.join(field.allowed)}")
    for name, field in table.fields.items():
        if field.required and value.get(name) is None:
            raise missing(f"{prefix}{name} is required")


def conform(service: str, value: Any, declared: str) -> None:
    """Make sure that an answer is one that the SDK's models allow: anything else is a bug of the server.

    The real service answers with null in one field that is marked as required: a platform image is in no
    compartment.
    """
    if declared in ("Image", "list[Image]"):
        images = value if isinstance(value, list) else [value]
        value = [{**image, "compartmentId": image["compartmentId"] or ""} for image in images]
        declared = "list[Image]"
    try:
        check(service, value, declared)
    except ApiError as error:
        raise AssertionError(f"answer is no {declared}: {error.message}") from error


def _expect(right: bool, where: str, declared: str) -> None:
    if not right:
        raise invalid(f"{where or 'the body'} must be of type {declared}")


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
