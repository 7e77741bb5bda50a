"""Server-side apply, as far as one manager's fields and plain lists go. Pure."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

Document = dict[str, Any]


def merged(there: Any, before: Any, now: Any) -> Any:
    """Merge the fields that a manager applies now into an object; remove its earlier fields that it no longer
    applies.

    Lists are replaced as a whole.
    """
    if not isinstance(now, dict) or not isinstance(there, dict):
        return copy.deepcopy(now)
    old = before if isinstance(before, dict) else {}
    made = {key: copy.deepcopy(value) for key, value in there.items() if key in now or key not in old}
    for key, value in now.items():
        made[key] = merged(there.get(key), old.get(key), value)
    return made


def conflicts(there: Document, others: Mapping[str, Document], now: Document) -> list[str]:
    """Fields that another manager applied and this one would change, as `manager: .spec.x`."""
    changed = {path for path, value in leaves(now) if dict(leaves(there)).get(path, value) != value}
    return [
        f'conflict with "{manager}": .{".".join(path)}'
        for manager, document in others.items()
        for path, _ in leaves(document)
        if path in changed
    ]


def leaves(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Iterate over the values of a document that are no objects, with their paths."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, repr(document)
