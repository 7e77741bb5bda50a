"""The EC2 query protocol by botocore's own description of EC2: forms to parameters, results to XML.

A parameter that EC2 does not have is refused, as is a value of the wrong type or outside its enumeration.
"""

import base64
import binascii
import datetime as dt
import functools
import uuid
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from botocore.loaders import Loader
from botocore.model import ListShape, OperationModel, ServiceModel, Shape, StructureShape

from tests.fakes.aws_proxy.errors import ApiError, missing

XMLNS = "http://ec2.amazonaws.com/doc/2016-11-15"
COMMON = frozenset({"Action", "Version"})
AUTHENTICATION = "X-Amz-"
"""Parameters of a signature in the query begin so."""

Params = dict[str, Any]
Tree = dict[str, Any]


@functools.cache
def service() -> ServiceModel:
    """Botocore's description of EC2."""
    return ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2")


@functools.cache
def operation(name: str) -> OperationModel:
    """Return an operation. Raises ApiError for a name that EC2 does not have."""
    if name not in service().operation_names:
        raise ApiError("InvalidAction", f"The action {name} is not valid for this web service.")
    return service().operation_model(name)


def parse(model: OperationModel, form: Mapping[str, str]) -> Params:
    """Parse the parameters into boto3's form."""
    tree: Tree = {}
    for key, value in form.items():
        if key not in COMMON and not key.startswith(AUTHENTICATION):
            _insert(tree, key, value)
    if model.input_shape is None:
        return {}
    return _structure(model.input_shape, tree, "")


def _insert(tree: Tree, key: str, value: str) -> None:
    *path, last = key.split(".")
    for name in path:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            raise ApiError("MalformedQueryString", f"The parameter {key} is both a value and a structure")
        tree = below
    if last in tree:
        raise ApiError("InvalidParameterValue", f"The parameter {key} is given twice")
    tree[last] = value


def query_name(name: str, shape: Shape) -> str:
    """Return the name of a member in a form."""
    inputs = shape.serialization
    if "queryName" in inputs:
        return str(inputs["queryName"])
    wire: str = inputs.get("name", name)
    return wire[0].upper() + wire[1:]


@functools.cache
def _members(shape: StructureShape) -> dict[str, tuple[str, Shape]]:
    return {query_name(name, member): (name, member) for name, member in shape.members.items()}


def _value(shape: Shape, given: Any, path: str) -> Any:
    if isinstance(shape, StructureShape):
        return _structure(shape, given, path)
    if isinstance(shape, ListShape):
        return _list(shape, given, path)
    if isinstance(given, dict):
        raise _unknown(f"{path}.{next(iter(given))}")
    return _scalar(shape, given, path)


def _structure(shape: StructureShape, given: Any, path: str) -> Params:
    if not isinstance(given, dict):
        raise _unknown(path)
    members, result = _members(shape), {}
    for key, value in given.items():
        where = f"{path}.{key}" if path else key
        if key not in members:
            raise _unknown(where)
        name, member = members[key]
        result[name] = _value(member, value, where)
    for name in shape.required_members:
        if name not in result:
            wire = query_name(name, shape.members[name])
            raise missing(f"{path}.{wire}" if path else wire[0].lower() + wire[1:])
    return result


def _list(shape: ListShape, given: Any, path: str) -> list[Any]:
    if isinstance(given, dict) and given.keys() == {"member"}:  # as services other than EC2 have it
        given = given["member"]
    if not isinstance(given, dict) or not all(key.isdigit() for key in given):
        raise _unknown(path)
    return [_value(shape.member, given[key], f"{path}.{key}") for key in sorted(given, key=int)]


def _scalar(shape: Shape, text: str, path: str) -> Any:
    try:
        if shape.type_name in ("integer", "long"):
            return int(text)
        if shape.type_name in ("float", "double"):
            return float(text)
        if shape.type_name == "blob":
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ApiError("InvalidParameterValue", f"Invalid value '{text}' for {path}.") from None
    if shape.type_name == "boolean":
        if text.lower() not in ("true", "false"):
            raise ApiError("InvalidParameterValue", f"Invalid value '{text}' for {path}. Must be a boolean.")
        return text.lower() == "true"
    if (allowed := getattr(shape, "enum", None)) and text not in allowed:
        raise ApiError("InvalidParameterValue", f"Invalid value '{text}' for {path}.")
    return text


def _unknown(path: str) -> ApiError:
    return ApiError("UnknownParameter", f"The parameter {path} is not recognized")


def result_xml(model: OperationModel, result: Mapping[str, Any]) -> bytes:
    """Encode a result, given in boto3's form; `None` omits a member."""
    parts = [
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{model.name}Response xmlns="{XMLNS}">',
        f"<requestId>{uuid.uuid4()}</requestId>",
    ]
    if model.output_shape is None:
        parts.append("<return>true</return>")
    else:
        write_members(parts, model.output_shape, result)
    parts.append(f"</{model.name}Response>")
    return "".join(parts).encode()


def error_xml(code: str, message: str) -> bytes:
    """Encode an error of EC2."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error></Errors>"
        f"<RequestID>{uuid.uuid4()}</RequestID></Response>"
    ).encode()


def write_members(parts: list[str], shape: Any, values: Mapping[str, Any]) -> None:
    """Write the members of a structure as XML."""
    for name, value in values.items():
        if value is not None:
            # A member that the model lacks is a mistake in the fake, and ends the call.
            member = shape.members[name]
            _write(parts, member, member.serialization.get("name", name), value)


def _write(parts: list[str], shape: Any, tag: str, value: Any) -> None:
    kind = shape.type_name
    if kind == "structure":
        parts.append(f"<{tag}>")
        write_members(parts, shape, value)
        parts.append(f"</{tag}>")
    elif kind == "list":
        item = shape.member.serialization.get("name", "member")
        parts.append(f"<{tag}>")
        for entry in value:
            _write(parts, shape.member, item, entry)
        parts.append(f"</{tag}>")
    else:
        parts.append(f"<{tag}>{_text(kind, value)}</{tag}>")


def _text(kind: str, value: Any) -> str:
    if kind == "boolean":
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return escape(str(value))
