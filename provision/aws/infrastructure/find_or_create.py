"""Finding what there is by its tags, and creating what is missing: what all of the infrastructure has in common."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from provision.aws.api import Api, Item
from provision.aws.requests import Request
from provision.errors import Exists
from provision.rented.interface import Ensure
from provision.waiting import Clock, PollWaits

Pick = Callable[[Sequence[Item]], Item | None]
Read = Callable[[], list[Any]]
T = TypeVar("T")


class ResourceMaker:
    """Creates resources through `Ensure`, and adopts those that another process made in between."""

    def __init__(self, api: Api, clock: Clock, consistency_s: float) -> None:
        self.api = api
        self.clock = clock
        self.consistency_s = consistency_s

    def reader(self, operation: str, key: str, which: list[Request], **more: Any) -> Read:
        """Reads a whole list, whenever it is called."""
        return partial(self.api.pages, operation, key, Filters=which, **more)

    def create(
        self, operation: str, request: Request, wrapped: str | None, field: str, *, again: bool = False
    ) -> str:
        """The id in the answer to a creating call, which may be about something just made."""
        answer = self.api.call(operation, again=again, settle=True, **request)
        return str((answer[wrapped] if wrapped else answer)[field])

    def ensure(
        self,
        kind: str,
        ensure: Ensure,
        known: Sequence[Item],
        *,
        read: Read,
        pick: Pick,
        field: str,
        create: Callable[[str], str],
        shared: bool = False,
    ) -> str:
        """`ensure` for something listed: looked for in `known` first, later in what `read` returns."""
        first: list[Sequence[Item]] = [known]

        def find() -> str | None:
            found = pick(first.pop() if first else read())
            return None if found is None else str(found[field])

        def create_or_adopt(token: str) -> str:
            try:
                return create(token)
            except Exists:
                # Another process was faster, or the list lags behind what we made ourselves.
                adopted = self.wait_for(find)
                if adopted is None:
                    raise
                return adopted

        return ensure(kind, find=find, create=create_or_adopt, shared=shared)

    def wait_for(self, find: Callable[[], T | None]) -> T | None:
        """What `find` returns once it does, or None when lists have had the time to settle."""
        deadline = self.clock.now() + self.consistency_s
        waits = PollWaits()
        while True:
            found = find()
            if found is not None or self.clock.now() > deadline:
                return found
            self.clock.sleep(waits.next())


def lowest(items: Sequence[Item], field: str) -> Item | None:
    """All processes choose the same one where a race made several."""
    return min(items, key=lambda item: str(item[field]), default=None)


def named(items: Sequence[Item], field: str, value: str) -> Item | None:
    """The one whose `field` is `value`."""
    return next((item for item in items if item.get(field) == value), None)
