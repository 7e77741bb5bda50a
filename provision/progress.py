"""Saying now and then how far something is that takes minutes."""

from provision.clock import Clock
from provision.provider import Say

EVERY_S = 15.0


class Progress:
    """Tells at most one line in EVERY_S, and none where it is over by then."""

    def __init__(self, clock: Clock, say: Say) -> None:
        self._clock = clock
        self._say = say
        self._began = clock.now()
        self._next = self._began + EVERY_S

    def tell(self, what: str) -> None:
        """Say `what` and how long it has taken so far, if it is time to."""
        now = self._clock.now()
        if now >= self._next:
            self._next = now + EVERY_S
            self._say(f"{what} ({now - self._began:.0f} s)")
