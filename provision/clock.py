"""Time, as everything that waits for a cloud sees it: so that a simulation can run on a faster one."""

import time
from typing import Protocol

from inventories.clocks import awake_s


class Clock(Protocol):
    """Where the time comes from and how it passes."""

    def now(self) -> float:
        """Seconds since some moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""


class SystemClock:
    """This computer's own."""

    def now(self) -> float:
        """Seconds since some moment; never goes back."""
        return awake_s()

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        time.sleep(seconds)
