"""Retries of calls to a cloud.

The SDKs' own retries are switched off: they repeat a refused call as well as one whose reply was lost, and without a
token the latter would make its resource twice.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from provision.errors import CloudError, NoAnswer, Throttled, Unclear
from provision.waiting import Clock, T

FIRST_WAIT_S = 0.5
MAX_WAIT_S = 30.0
THROTTLED_FOR_S = 600.0
UNCLEAR_FOR_S = 120.0
FIRST_ANSWER_S = 2.0
"""Retries of a service that has never answered. With one timeout, a message appears within 10 s."""
CONNECT_TIMEOUT_S = 4.0
FIRST_READ_S = 6.0
"""Timeout of the first answer of a service to a call that only reads."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The retries of calls to a cloud. Waits grow with jitter; both deadlines count from the first try."""

    clock: Clock
    throttled_for_s: float = THROTTLED_FOR_S
    unclear_for_s: float = UNCLEAR_FOR_S
    _answered: set[str] = field(default_factory=set)

    def call(self, do: Callable[[], T], *, again: bool, service: str = "") -> T:
        """Call `do` until it returns; raise the last error. A throttled call is repeated: it had no effect.

        `again`: `do` may also be repeated after an unclear outcome, as it only reads, has a token, or is
        idempotent. `service`: the server, of which some may answer and others not.
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
            wait_s = min(wait_s * 2, MAX_WAIT_S)
