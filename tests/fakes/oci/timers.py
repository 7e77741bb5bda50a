"""Run scheduled actions in simulated time: one thread, which runs due actions under the cloud's lock."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable

Action = Callable[[], None]


class Timers:
    """Runs actions when they are due. `lock` is held while one runs."""

    def __init__(self, lock: threading.RLock) -> None:
        self._due: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition(lock)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="timers", daemon=True)
        self._thread.start()

    def after(self, real_s: float, action: Action) -> None:
        """Schedule an action after `real_s` real seconds."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + real_s, next(self._numbers), action))
            self._changed.notify()

    def run_due(self) -> None:
        """Run all due actions now: called before a request is handled, so that no response is outdated."""
        with self._changed:
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()

    def clear(self) -> None:
        """Forget all that is to come."""
        with self._changed:
            self._due.clear()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._over:
                self.run_due()
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
