"""When a call to a cloud is made again: the one place that decides it.

The SDKs' own retries are switched off. They can't tell a call that was refused from one whose reply was
lost, and repeat both; what has no token would be made twice.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from provision.clock import Clock
from provision.errors import CloudError, NoAnswer, Throttled, Unclear

T = TypeVar("T")

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
THROTTLED_FOR_S = 600.0
UNCLEAR_FOR_S = 120.0
FIRST_ANSWER_S = 2.0
"""Retries of a service that has never answered. With one timeout, a person reads of it within 10 s."""
CONNECT_TIMEOUT_S = 4.0
FIRST_READ_S = 6.0
"""Timeout of the first answer of a service to a call that only reads."""
LONG_SHARE = 1 / 8
CLOSE_SHARE = 1 / 20
"""For what somebody waits for who wants to go on."""
FIRST_REMINDER_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Patience with a cloud. Waits grow with jitter; both deadlines count from the first try."""

    clock: Clock
    throttled_for_s: float = THROTTLED_FOR_S
    unclear_for_s: float = UNCLEAR_FOR_S
    _answered: set[str] = field(default_factory=set)

    def call(self, do: Callable[[], T], *, again: bool, service: str = "") -> T:
        """What `do` returns. A throttled call is made again: it was refused.

        `again`: `do` may also be repeated when its outcome is unclear, as it only reads, carries a token,
        or does nothing the second time. `service`: the server, of which some may answer and others not. Raises what
        the last try raised.
        """
        began = self.clock.now()
        wait_s = FIRST_WAIT_S
        while True:
            try:
                answer = do()
                self._answered.add(service)
                return answer
            except CloudError as error:
                if not isinstance(error, NoAnswer):
                    self._answered.add(service)
                if not isinstance(error, Throttled) and not (again and isinstance(error, Unclear)):
                    raise
                budget_s = self.throttled_for_s if isinstance(error, Throttled) else self.unclear_for_s
                if service not in self._answered:
                    budget_s = min(budget_s, FIRST_ANSWER_S)
                wait = wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
                if self.clock.now() + wait - began > budget_s:
                    raise
            self.clock.sleep(wait)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)


class PollWaits:
    """0.2 s, then half as much more each time, up to `longest_s`; in the long run a share of what has passed.

    With an eighth, what takes half an hour costs some fifty looks.
    """

    def __init__(self, first_s: float = 0.2, longest_s: float = 5.0, share: float = LONG_SHARE) -> None:
        self._next_s = first_s
        self._longest_s = longest_s
        self._share = share
        self._passed_s = 0.0

    def next(self) -> float:
        """Seconds to wait before the next look."""
        wait_s = max(self._next_s, self._passed_s * self._share)
        self._next_s = min(self._next_s * 1.5, self._longest_s)
        self._passed_s += wait_s
        return wait_s


class Reminders:
    """When to ask again for what was asked for and did not happen: 30 s later, then each time after twice as long."""

    def __init__(self, clock: Clock, first_s: float = FIRST_REMINDER_S) -> None:
        self._clock = clock
        self._first_s = first_s
        self._due: dict[str, tuple[float, float]] = {}
        """When each is to be asked for next, and how long after that again."""

    def due(self, ids: Iterable[str]) -> list[str]:
        """Those to ask for now, in order."""
        now = self._clock.now()
        return sorted(name for name in ids if name not in self._due or self._due[name][0] <= now)

    def asked(self, ids: Iterable[str]) -> None:
        """Note that these were asked for, and that it was heard."""
        for name in ids:
            wait_s = self._due[name][1] if name in self._due else self._first_s
            self._due[name] = (self._clock.now() + wait_s, wait_s * 2)
