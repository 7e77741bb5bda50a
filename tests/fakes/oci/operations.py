"""Read the operations from the SDK's own clients: paths, parameters, headers, models.

A client's source is cut at its methods and each method is read with a few patterns; the clients are generated, so
that all of them look alike. No client is imported.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.fakes.oci.errors import invalid, missing

_METHOD = re.compile(r"\n    def (?=[a-z])")
_PATH = re.compile(r'resource_path = "(.*)"')
_VERB = re.compile(r'method = "(.*)"')
_QUERY_BLOCK = re.compile(r"query_params = \{\n(.*?)\n        \}", re.S)
_HEADER_BLOCK = re.compile(r"header_params = \{\n(.*?)\n        \}", re.S)
_PAIR = re.compile(r'^ +"([\w.-]+)": (.+?),?$', re.M)
_OPTION = re.compile(r"""kwargs\.get\(["'](\w+)["']""")
_MULTIPLE = re.compile(r"generate_collection_format_param\(.*'multi'\)")
_BODY = re.compile(r"body=(?:kwargs\.get\(')?(\w+)")
_RESPONSE = re.compile(r'response_type="(.*)"')
_TYPE = re.compile(r":param (\S+) (\w+): \((required|optional)\)")
_ENUM = re.compile(r"(\w+)_allowed_values = \[(.*?)\]")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a query."""

    type: str
    required: bool
    multiple: bool
    allowed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of the API."""

    name: str
    service: str
    method: str
    path: str
    pattern: re.Pattern[str] = field(repr=False)
    query: dict[str, Parameter] = field(repr=False)
    headers: frozenset[str] = field(repr=False)
    body: str | None
    body_required: bool
    response: str | None

    @property
    def mutating(self) -> bool:
        """Return whether the operation can change anything."""
        return self.method != "GET" and self.name not in _READING

    @property
    def takes_token(self) -> bool:
        """Return whether the operation honours `opc-retry-token`."""
        return "opc-retry-token" in self.headers

    @property
    def paged(self) -> bool:
        """Return whether the response comes in pages."""
        return "page" in self.query


_READING = {"CreateComputeCapacityReport"}


def operations(service: str, client: str, base: str, names: Iterable[str]) -> list[Operation]:
    """Return the named operations of a client such as `core/compute_client`, under the base path."""
    methods = _methods(client)
    return [_operation(service, base, name, methods[_snake(name)]) for name in names]


@cache
def _methods(client: str) -> dict[str, str]:
    spec = find_spec("oci")
    assert spec and spec.origin, "the oci SDK is not installed"
    source = Path(spec.origin).parent.joinpath(f"{client}.py").read_text()
    return {text.split("(", 1)[0]: text for text in _METHOD.split(source)[1:]}


def _operation(service: str, base: str, name: str, text: str) -> Operation:
    path = _one(_PATH, text)
    assert path, name
    types = {argument: (kind, need) for kind, argument, need in _TYPE.findall(text)}
    path = base + path
    body = _one(_BODY, text)
    model, need = types[body] if body else (None, "optional")
    return Operation(
        name=name,
        service=service,
        method=_one(_VERB, text) or "",
        path=path,
        pattern=re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path) + "/?$"),
        query=_query(text, {argument: kind for argument, (kind, _) in types.items()}),
        headers=frozenset(header for header, _ in _PAIR.findall(_one(_HEADER_BLOCK, text) or "")),
        body=model.rsplit(".", 1)[-1] if model else None,
        body_required=need == "required",
        response=_one(_RESPONSE, text),
    )


def _query(text: str, types: dict[str, str]) -> dict[str, Parameter]:
    allowed = {name: tuple(re.findall(r'"([^"]+)"', values)) for name, values in _ENUM.findall(text)}
    query = {}
    for wire, value in _PAIR.findall(_one(_QUERY_BLOCK, text) or ""):
        option = _one(_OPTION, value)
        argument = option or value
        query[wire] = Parameter(
            type=types.get(argument, "str"),
            required=option is None,
            multiple=bool(_MULTIPLE.search(value)),
            allowed=allowed.get(argument, ()),
        )
    return query


def check_query(operation: Operation, query: dict[str, list[str]]) -> None:
    """Raise the error that names the first parameter that is unknown, missing or no value of its type."""
    for name, values in query.items():
        parameter = operation.query.get(name)
        if parameter is None:
            raise invalid(f"{operation.name} takes no query parameter {name}")
        if len(values) > 1 and not parameter.multiple:
            raise invalid(f"query parameter {name} is given more than once")
        for value in values:
            if parameter.type == "int" and not value.isdecimal():
                raise invalid(f"query parameter {name} must be a whole number, not '{value}'")
            if parameter.type == "bool" and value not in ("true", "false"):
                raise invalid(f"query parameter {name} must be true or false, not '{value}'")
            if parameter.allowed and value not in parameter.allowed:
                raise invalid(
                    f"query parameter {name} is '{value}', not one of: {', '.join(parameter.allowed)}"
                )
    for name, parameter in operation.query.items():
        if parameter.required and not any(query.get(name, ())):
            raise missing(f"query parameter {name} is required")


def _one(pattern: re.Pattern[str], text: str) -> str | None:
    result = pattern.search(text)
    return result[1] if result else None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
