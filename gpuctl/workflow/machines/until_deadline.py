"""The same work for many at once, each in a thread of its own, until a deadline: the silent keep nobody waiting."""

from collections.abc import Callable, Mapping
from threading import Semaphore, Thread
from typing import Generic, TypeVar

from inventories.clocks import awake_s, join_awake

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
        self._limit = awake_s() + deadline_s
        places = Semaphore(at_once)

        def run(name: str, item: Item) -> None:
            with places:
                self._answers[name] = work(item)

        self._threads = [
            Thread(target=run, args=pair, daemon=True, name=f"ask for {pair[0]}") for pair in items.items()
        ]
        for thread in self._threads:
            thread.start()

    def answers(self) -> dict[str, Value]:
        """Return the answers until the deadline, by name, without the silent items."""
        for thread in self._threads:
            join_awake(thread, self._limit - awake_s())
        return dict(self._answers)
