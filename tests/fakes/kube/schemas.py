"""Check objects as an API server does: against the published schemas, without unknown fields.

KubeRay's kinds use the schemas of its definitions; Kubernetes' own kinds use the official client's models. Rules in
CEL are not checked here: a current API server does that.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from kubernetes import client
from openapi_schema_validator import OAS30Validator

Document = dict[str, Any]

PLAIN: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "datetime": str,
    "bytes": str,
    "object": object,
}

MODELS = {"Event": "CoreV1Event"}
"""Kinds whose model has another name."""


def problems(document: Document, definition: Document | None) -> list[str]:
    """Return the reasons for which an API server would refuse an object; `definition` defines a custom resource."""
    if definition is None:
        kind = document["kind"]
        return list(_in_model(MODELS.get(kind, f"V1{kind}"), document, kind))
    metadata = list(_in_model("V1ObjectMeta", document.get("metadata", {}), "metadata"))
    version = document["apiVersion"].rpartition("/")[2]
    (schema,) = (
        item["schema"]["openAPIV3Schema"]
        for item in definition["spec"]["versions"]
        if item["name"] == version
    )
    result = _validator(definition["metadata"]["name"], version, schema).iter_errors(document)
    return metadata + [
        f"{'.'.join(str(part) for part in item.path)}: {item.message[:300]}" for item in result
    ]


_VALIDATORS: dict[tuple[str, str], OAS30Validator] = {}


def _validator(name: str, version: str, schema: Document) -> OAS30Validator:
    """Made once: the schemas are large."""
    if (name, version) not in _VALIDATORS:
        _VALIDATORS[name, version] = OAS30Validator(_closed(schema))
    return _VALIDATORS[name, version]


def _closed(schema: Any) -> Any:
    """Return the schema with unknown fields refused, and integers and strings accepted in int-or-string fields."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items()}
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        free = made.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in made
        made |= {} if free else {"additionalProperties": False}
    return made


@cache
def _model(name: str) -> tuple[Any, dict[str, str], dict[str, str]] | None:
    """Return a model: its class, the types of its fields, and its own names for them."""
    model = getattr(client, name, None)
    if model is None or not hasattr(model, "openapi_types"):
        return None
    local = {field: attribute for attribute, field in model.attribute_map.items()}
    return model, {field: model.openapi_types[attribute] for field, attribute in local.items()}, local


def _in_model(name: str, document: Any, where: str) -> Iterator[str]:
    known = _model(name)
    assert known is not None, f"the client has no model {name}"
    model, types, local = known
    if not isinstance(document, dict):
        yield f"{where}: it is not an object"
        return
    inputs = {}
    for field, value in document.items():
        if field not in types:
            yield f"{where}.{field}: field not declared in schema"
        elif value is not None:
            inputs[local[field]] = value
            yield from _in_type(types[field], value, f"{where}.{field}")
    try:
        model(**inputs)
    except ValueError as error:
        yield f"{where}: {error}"


def _in_type(kind: str, value: Any, where: str) -> Iterator[str]:
    if result := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _in_type(result[1], item, f"{where}[{index}]")
        else:
            yield f"{where}: it is not a list"
    elif result := re.fullmatch(r"dict\(\w+, (.+)\)|Dict\[\w+, (.+)\]", kind):
        if isinstance(value, dict):
            for key, item in value.items():
                yield from _in_type(result[1] or result[2], item, f"{where}.{key}")
        else:
            yield f"{where}: it is not an object"
    elif kind not in PLAIN:
        yield from _in_model(kind, value, where)
    elif not isinstance(value, PLAIN[kind]) or (kind == "int" and isinstance(value, bool)):
        yield f"{where}: it is not of type {kind}, but {value!r}"
