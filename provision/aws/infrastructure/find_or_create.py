"""Resources of the infrastructure: found by their tags, or created."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from provision.aws.api import Api, Item
from provision.aws.requests import Request
from provision.errors import Exists
from provision.records import CloudCluster
from provision.rented.find_or_create import Ensure
from provision.waiting import Clock, Say, first_result

Pick = Callable[[Sequence[Item]], Item | None]
Read = Callable[[], Sequence[Any]]
T = TypeVar("T")


@dataclass
class Listing:
    """A list of AWS. `known`: its latest answer."""

    _read: Read
    known: Sequence[Item] = ()

    def read(self) -> Sequence[Item]:
        """Return a new answer."""
        self.known = self._read()
        return self.known


@dataclass(frozen=True)
class ResourceMaker:
    """Creates resources for one cluster through `Ensure`, and adopts resources that another process made."""

    api: Api
    clock: Clock
    consistency_s: float
    cluster: CloudCluster
    ensurer: Ensure

    @property
    def say(self) -> Say:
        """Takes a line of progress."""
        return self.ensurer.say

    def listing(self, operation: str, key: str, filters: list[Request], **more: Any) -> Listing:
        """Return a list, which is not read yet."""
        return Listing(partial(self.api.pages, operation, key, Filters=filters, **more))

    def create(
        self, operation: str, request: Request, wrapped: str | None, field: str, *, again: bool = False
    ) -> str:
        """Make a creating call, which may name a new resource. Returns the id in its answer."""
        answer = self.api.call(operation, again=again, settle=True, **request)
        return str((answer[wrapped] if wrapped else answer)[field])

    def ensure(
        self,
        kind: str,
        listing: Listing,
        *,
        pick: Pick,
        field: str,
        create: Callable[[str], str],
        shared: bool = False,
    ) -> str:
        """Call `Ensure` for a listed resource: searched in the known answer first, later in new ones."""
        first: list[Sequence[Item]] = [listing.known]

        def find() -> str | None:
            item = pick(first.pop() if first else listing.read())
            return None if item is None else str(item[field])

        def create_or_adopt(token: str) -> str:
            try:
                return create(token)
            except Exists:
                # Another process was faster, or the list lags behind our own call.
                adopted = self.wait_for(find)
                if adopted is None:
                    raise
                return adopted

        return self.ensurer(kind, find=find, create=create_or_adopt, shared=shared)

    def wait_for(self, find: Callable[[], T | None]) -> T | None:
        """Return the first result of `find`. `None`: no result until the lists had settled."""
        return first_result(self.clock, find, self.consistency_s)


def lowest(items: Sequence[Item], field: str) -> Item | None:
    """Return the item with the lowest id, so that all processes choose the same one after a race."""
    return min(items, key=lambda item: str(item[field]), default=None)


def named(items: Sequence[Item], field: str, value: str) -> Item | None:
    """Return the item whose `field` is `value`."""
    return next((item for item in items if item.get(field) == value), None)
