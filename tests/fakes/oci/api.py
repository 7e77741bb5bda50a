"""A checked request, a reply, and pages of a list."""

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.fakes.oci.errors import invalid
from tests.fakes.oci.operations import Operation

if TYPE_CHECKING:
    from tests.fakes.oci.store import Cloud, Resource

View = dict[str, Any]
"""A resource as the API shows it."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request; its parameters and body have the operation's types."""

    operation: Operation
    path: dict[str, str]
    query: dict[str, list[str]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None

    def one(self, name: str) -> str | None:
        """Return a parameter of the query, or `None`."""
        values = self.query.get(name)
        return values[0] if values else None

    def flag(self, name: str, default: bool) -> bool:
        """Return a parameter of the query as a bool."""
        value = self.one(name)
        return default if value is None else value == "true"

    @property
    def target(self) -> str:
        """Return the identifier at the end of the path's parameters."""
        return list(self.path.values())[-1]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The handler's response. `made` is the resource that a retry of the request returns."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    made: "Resource | None" = None


Handler = Callable[["Cloud", Request], Reply]


def shown(resource: "Resource", *, made: bool = False, **headers: str) -> Reply:
    """Return a reply with one resource and its etag."""
    return Reply(
        body=resource.view,
        headers={"etag": resource.etag, **headers},
        made=resource if made else None,
    )


def page(
    request: Request,
    views: Iterable[tuple[int, View]],
    *,
    size: int,
    wrap: bool = False,
    done: frozenset[str] = frozenset(),
) -> Reply:
    """Return the requested page of numbered rows, filtered and sorted by the query.

    A token stands for the last returned row, so that added or removed rows do not move the others. `wrap` is for
    operations that respond with a collection; `done` are the filters that the rows have passed.
    """
    rows = [(number, view) for number, view in views if _matches(request, view, done)]
    descending = _descending(request)
    keyed = sorted(((_key(request, number, view), view) for number, view in rows), key=lambda row: row[0])
    if descending:
        keyed.reverse()
    if token := request.one("page"):
        after = _untoken(request, token)
        keyed = [row for row in keyed if (row[0] < after if descending else row[0] > after)]
    if request.operation.paged:
        limit = int(request.one("limit") or size)
        if not 1 <= limit <= 1000:
            raise invalid("query parameter limit must be between 1 and 1000")
        size = min(limit, size)
    else:
        size = len(keyed)
    items = [view for _, view in keyed[:size]]
    headers = {}
    if len(keyed) > size:
        headers["opc-next-page"] = _token(request, keyed[size - 1][0])
    return Reply(body={"items": items} if wrap else items, headers=headers)


_NO_FILTERS = frozenset(
    {
        "limit",
        "page",
        "sortBy",
        "sortOrder",
        "compartmentIdInSubtree",
        "accessLevel",
        "subscriptionId",
        "externalLocation",
        "publisherType",
    }
)


def _matches(request: Request, view: View, done: frozenset[str]) -> bool:
    filters = request.query.keys() - _NO_FILTERS - done
    return all(view.get(name) in request.query[name] for name in filters)


_SORTED_BY = {"TIMECREATED": "timeCreated", "DISPLAYNAME": "displayName", "NAME": "name"}

Key = tuple[str, int]


def _key(request: Request, number: int, view: View) -> Key:
    chosen = _SORTED_BY.get(request.one("sortBy") or "")
    return (str(view.get(chosen, "")) if chosen else "", number)


def _descending(request: Request) -> bool:
    order = request.one("sortOrder")
    if order is None:
        return request.one("sortBy") == "TIMECREATED"
    return order == "DESC"


def _token(request: Request, key: Key) -> str:
    text = json.dumps([request.operation.name, *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def _untoken(request: Request, token: str) -> Key:
    try:
        operation, name, number = json.loads(base64.urlsafe_b64decode(token.encode()))
    except ValueError:
        raise invalid("query parameter page is no token of a page") from None
    if operation != request.operation.name:
        raise invalid(f"query parameter page is a token of {operation}, not of {request.operation.name}")
    return name, number
