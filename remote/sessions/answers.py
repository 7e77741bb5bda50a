"""Parts of a node's answer as dataclasses: a node may send anything."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

from inventories.codec import from_json
from inventories.errors import CorruptFile
from remote.errors import BadAnswer

T = TypeVar("T")
PROBLEMS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def reading(node: str, what: str) -> Iterator[None]:
    """Turn an error of the body, which reads `what` a node sent, into BadAnswer."""
    try:
        yield
    except CorruptFile as error:
        raise BadAnswer(f"{node}: {what} can't be read: {error}") from error
    except PROBLEMS as error:
        raise BadAnswer(f"{node}: {what} can't be read: {error!r}.") from error


def answer_as(cls: type[T], document: Mapping[str, Any], what: str) -> T:
    """Return a part of an answer as the dataclass `cls`, without the keys that it lacks. Raises CorruptFile."""
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type] # a dataclass
    return from_json(cls, {key: value for key, value in document.items() if key in known}, what)
