"""The seconds that each part of a run took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class TimeParts:
    """Seconds by the part's name. A second counts once: for the innermost part that is measured then."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the body, without the parts that are measured in it."""
        began, before = time.perf_counter(), sum(self.seconds.values())
        try:
            yield
        finally:
            inner = sum(self.seconds.values()) - before
            self.add(name, time.perf_counter() - began - inner)

    def add(self, name: str, seconds: float) -> None:
        """Add to a part."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
