"""Filters and pages of EC2's describe calls, applied to boto3's view."""

import base64
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from re import Pattern
from re import compile as compile_pattern
from typing import Any, TypeVar

from tests.fakes.aws_proxy.errors import ApiError, combination

T = TypeVar("T")
M = TypeVar("M", bound=Mapping[str, Any])
Names = Mapping[str, str]
"""By the name of a filter: the path of the compared value, such as `Placement.GroupName`. A list on the way stands
for each of its members."""


def matching(items: Iterable[M], filters: Sequence[Mapping[str, Any]], names: Names) -> list[M]:
    """Return the items that pass all filters. Raises ApiError for an unknown filter."""
    tests = [_test(entry, names) for entry in filters]
    return [item for item in items if all(test(item) for test in tests)]


def _test(entry: Mapping[str, Any], names: Names) -> Callable[[Mapping[str, Any]], bool]:
    name, values = entry.get("Name", "null"), entry.get("Values")
    if not values:
        raise ApiError("InvalidParameterValue", f"The filter '{name}' has no value.")
    patterns = [_pattern(value) for value in values]
    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return lambda item: _any(
            patterns, [tag["Value"] for tag in item.get("Tags", []) if tag["Key"] == key]
        )
    path = "Tags.Key" if name == "tag-key" else names.get(name)
    if path is None:
        raise ApiError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return lambda item: _any(patterns, _texts(item, path.split(".")))


def _pattern(value: str) -> Pattern[str]:
    # EC2 knows * and ?, and takes [ as it is.
    return compile_pattern(translate(value.replace("[", "[[]")))


def _any(patterns: Sequence[Pattern[str]], texts: Iterable[str]) -> bool:
    return any(pattern.match(text) for text in texts for pattern in patterns)


def _texts(value: Any, path: Sequence[str]) -> Iterable[str]:
    if value is None:
        return
    if isinstance(value, list):
        for entry in value:
            yield from _texts(entry, path)
    elif path:
        yield from _texts(value.get(path[0]), path[1:])
    elif isinstance(value, bool):
        yield str(value).lower()
    elif isinstance(value, dt.datetime):
        yield value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    else:
        yield str(value)


def page(
    items: Sequence[T], params: Mapping[str, Any], *, ids: str | None = None, most: int | None = None
) -> tuple[list[T], str | None]:
    """Return one page, and the token of the next. `ids`: the parameter that excludes MaxResults; `most`: the size of
    a page without MaxResults.
    """
    size = params.get("MaxResults")
    if size is not None and ids and params.get(ids):
        raise combination(f"The parameter {ids} cannot be used with the parameter maxResults")
    if size is not None and not 5 <= size <= 1000:
        raise ApiError("InvalidParameterValue", f"Value ( {size} ) for parameter maxResults is invalid.")
    start = _start(params.get("NextToken"))
    end = start + min(size or len(items), most or len(items))
    following = base64.b64encode(f"from {end}".encode()).decode() if end < len(items) else None
    return list(items[start:end]), following


def _start(token: str | None) -> int:
    if token is None:
        return 0
    try:
        return int(base64.b64decode(token).decode().removeprefix("from "))
    except ValueError as error:
        raise ApiError("InvalidNextToken", "The token is invalid.") from error
