"""Saying now and then how far something is that takes minutes."""

from provision.clock import Clock
from provision.provider import Say

EVERY_S = 15.0


class Progress:
    """Tells at most one line in `every_s`, and none where it is over by then."""

    def __init__(self, clock: Clock, say: Say, *, every_s: float = EVERY_S) -> None:
        self._clock = clock
        self._say = say
        self._every_s = every_s
        self._began = clock.now()
        self._next = self._began + every_s

    def tell(self, what: str) -> None:
        """Say `what` and how long it has taken so far, if it is time to."""
        now = self._clock.now()
        if now >= self._next:
            self._next = now + self._every_s
            self._say(f"{what} ({now - self._began:.0f} s)")
