"""The protocol of EKS, REST with JSON as botocore describes it; refuse unknown operations and parameters."""

import functools
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from botocore.loaders import Loader
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape
from botocore.validate import ParamValidator

from tests.fakes.aws_proxy.errors import ApiError

Params = dict[str, Any]


@functools.cache
def service(name: str = "eks") -> ServiceModel:
    """Botocore's description of a service."""
    return ServiceModel(Loader().load_service_model(name, "service-2"), name)


@dataclass(frozen=True, kw_only=True)
class Route:
    """An operation, and its paths."""

    method: str
    pattern: re.Pattern[str]
    operation: str


@functools.cache
def _routes() -> tuple[Route, ...]:
    result = []
    for name in service().operation_names:
        http = service().operation_model(name).http
        path = http["requestUri"].partition("?")[0]
        words = re.sub(r"\{(\w+)\}", lambda word: f"(?P<{word[1]}>[^/]+)", path)
        result.append(Route(method=http["method"], pattern=re.compile(words), operation=name))
    return tuple(result)


def operation_of(method: str, path: str) -> str:
    """Return the operation of a request; empty: EKS has no such path."""
    return next(
        (route.operation for route in _routes() if route.method == method and route.pattern.fullmatch(path)),
        "",
    )


def parse(operation: str, method: str, path: str, query: str, body: bytes) -> Params:
    """Parse the parameters into boto3's form. Raises ApiError for an unknown parameter."""
    route = next(item for item in _routes() if item.operation == operation and item.method == method)
    result = route.pattern.fullmatch(path)
    assert result
    model = service().operation_model(operation)
    shape = model.input_shape
    assert isinstance(shape, StructureShape)
    inputs: Params = {}
    places = {member.serialization.get("name", name): name for name, member in shape.members.items()}
    for word, text in result.groupdict().items():
        inputs[places[word]] = unquote(text)
    for word, text in parse_qsl(query, keep_blank_values=True):
        name = places.get(word)
        if name is None:
            raise _invalid(f"there is no parameter {word}")
        member = shape.members[name]
        if isinstance(member, ListShape):
            inputs.setdefault(name, []).append(text)
        else:
            inputs[name] = int(text) if member.type_name == "integer" else text
    for name, value in json.loads(body or b"{}").items():
        if name not in shape.members or shape.members[name].serialization.get("location"):
            raise _invalid(f"there is no parameter {name}")
        inputs[name] = value
    _refuse_unknown(shape, inputs, operation)
    if report := ParamValidator().validate(inputs, shape).generate_report():
        raise _invalid(report)
    return inputs


def _refuse_unknown(shape: Shape, value: Any, where: str) -> None:
    """Names and words that the model does not have: botocore itself lets words pass."""
    if isinstance(shape, StructureShape):
        if not isinstance(value, dict):
            raise _invalid(f"{where} is no structure")
        for name, inner in value.items():
            if name not in shape.members:
                raise _invalid(f"{where} has no {name}")
            _refuse_unknown(shape.members[name], inner, f"{where}.{name}")
    elif isinstance(shape, ListShape):
        for inner in value:
            _refuse_unknown(shape.member, inner, where)
    elif isinstance(shape, MapShape):
        for inner in value.values():
            _refuse_unknown(shape.value, inner, where)
    elif (words := getattr(shape, "enum", None)) and value not in words:
        raise _invalid(f"{where} can't be {value}")


def model_of(operation: str) -> OperationModel:
    """Return the description of an operation."""
    return service().operation_model(operation)


def _invalid(why: str) -> ApiError:
    return ApiError("InvalidParameterException", why)
