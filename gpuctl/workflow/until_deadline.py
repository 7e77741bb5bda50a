"""The same work for many at once, each in a thread of its own, until a deadline: the silent keep nobody waiting."""

import time
from collections.abc import Callable, Mapping
from threading import Semaphore, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


class Asking(Generic[Item, Value]):
    """Begins when it is made. `work` must not raise.

    The threads are daemons: one that never ends keeps no command from ending.
    """

    def __init__(
        self, work: Callable[[Item], Value], items: Mapping[str, Item], *, at_once: int, deadline_s: float
    ) -> None:
        self._answers: dict[str, Value] = {}
        self._limit = time.monotonic() + deadline_s
        places = Semaphore(at_once)

        def one(name: str, item: Item) -> None:
            with places:
                self._answers[name] = work(item)

        self._threads = [
            Thread(target=one, args=pair, daemon=True, name=f"ask for {pair[0]}") for pair in items.items()
        ]
        for thread in self._threads:
            thread.start()

    def answers(self) -> dict[str, Value]:
        """What came until the deadline, by name; the silent are missing."""
        for thread in self._threads:
            thread.join(max(0.0, self._limit - time.monotonic()))
        return dict(self._answers)
