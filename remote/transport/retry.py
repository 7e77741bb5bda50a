"""SSH servers that hang up before they say anything: connecting to them is tried again.

sshd does so to some of many that connect at once (MaxStartups 10:30:100, counted for all of its clients).
"""

import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeVar

from inventories.clocks import awake_s
from remote.errors import Unreachable

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0

Value = TypeVar("Value")


class HungUp(Unreachable):
    """The server closed the connection before its banner."""


def retry_hang_ups(connect: Callable[[], Value], *, deadline_s: float) -> Value:
    """Call `connect` again while it raises HungUp; after the deadline, raise Unreachable."""
    limit = awake_s() + deadline_s
    for attempt, pause_s in enumerate(pauses(), start=1):
        try:
            return connect()
        except HungUp as error:
            if awake_s() + pause_s > limit:
                raise Unreachable(
                    f"{error} It was tried {attempt} times in {deadline_s:.0f} s. Too many connect to it at once "
                    "(MaxStartups in its sshd_config), or it locks this computer out for a while (fail2ban, "
                    "PerSourcePenalties): wait a minute, and try again."
                ) from error
        time.sleep(pause_s)
    raise AssertionError("the pauses never end")


def pauses(spread: Callable[[float, float], float] = random.uniform) -> Iterator[float]:
    """Yield the pause after each attempt: growing, and different for two clients with the same failure."""
    for attempt in count():
        longest_s = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
        yield spread(longest_s / 2, longest_s)
