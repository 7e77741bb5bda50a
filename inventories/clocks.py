"""Time on a computer that may be suspended, and in a process that may be stopped (Ctrl-Z), for any time.

`passed_s` counts all time: for durations. `awake_s` counts the time in which this process ran: for deadlines. A
process that did not run heard nobody, so that time is no silence of a machine.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_ALL_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts the time of a suspended computer, too; on macOS, CLOCK_MONOTONIC does."""
TICK_S = 1.0
AWAY_S = 5.0
"""A longer time without a tick: the process was stopped, or the computer suspended."""
MAX_RETRIES = 3
JUMP_S = 1.0
"""The calendar clock was set if it advanced by this much more than the time."""

Value = TypeVar("Value")


def passed_s() -> float:
    """Return seconds since some moment, with the time in which this computer was suspended."""
    return time.clock_gettime(_ALL_TIME)


@dataclass(frozen=True, kw_only=True)
class Ticked:
    """Readings of a clock, in seconds."""

    awake_s: float
    """In which this process ran."""
    away_s: float
    """In which it did not."""
    back_for_s: float
    """Since it last did not. Infinity: it always ran."""


class AwakeClock:
    """Counts the time between ticks that come in time, and leaves out the others."""

    def __init__(self, passed: Callable[[], float] = passed_s) -> None:
        self._passed = passed
        self._seen_s = passed()
        self._away_s = 0.0
        self._back_at = -math.inf
        self._lock = threading.RLock()

    def tick(self) -> Ticked:
        """Read the clocks, and return the times since the last reading."""
        with self._lock:
            now = self._passed()
            if now - self._seen_s > AWAY_S:
                self._away_s += now - self._seen_s
                self._back_at = now
            self._seen_s = now
            return Ticked(awake_s=now - self._away_s, away_s=self._away_s, back_for_s=now - self._back_at)


class _Ticking:
    """The clock of this process. A thread ticks from its first use on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._clock: AwakeClock | None = None

    def tick(self) -> Ticked:
        with self._lock:
            if self._clock is None:
                self._clock = AwakeClock()
                threading.Thread(target=self._run, args=(self._clock,), daemon=True, name="clock").start()
            return self._clock.tick()

    def _run(self, clock: AwakeClock) -> None:
        while True:
            time.sleep(TICK_S)
            clock.tick()


_ticking = _Ticking()


def _begin_again() -> None:
    """A forked child has no threads."""
    _ticking.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_begin_again)


def awake_s() -> float:
    """Return seconds since some moment, without the time in which this process did not run."""
    return _ticking.tick().awake_s


def back_for_s() -> float:
    """Return the seconds since this process last did not run. Infinity: it always ran."""
    return _ticking.tick().back_for_s


class Watch:
    """Knows whether this process saw all the time since the watch was made, and whether no clock was set."""

    def __init__(self) -> None:
        self._away_s, self._ahead_s = _ticking.tick().away_s, time.time() - passed_s()

    def was_away(self) -> bool:
        """Return whether a timeout since then proves nothing."""
        return _ticking.tick().away_s > self._away_s or abs(time.time() - passed_s() - self._ahead_s) > JUMP_S


def retry_if_away(work: Callable[[], Value], errors: type[Exception] | tuple[type[Exception], ...]) -> Value:
    """Return what `work` returns. It is called again, a few times at most, if it fails and this process was away."""
    for _ in range(MAX_RETRIES):
        watch = Watch()
        try:
            return work()
        except errors:
            if not watch.was_away():
                raise
    return work()


def wait_awake(wait: Callable[[float], Value | None], seconds: float) -> Value | None:
    """Call `wait` with the seconds that are left, until it returns a value or this process ran for `seconds`."""
    limit, left_s = awake_s() + seconds, seconds
    while (value := wait(left_s)) is None and (left_s := limit - awake_s()) > 0:
        pass
    return value


class Timer(threading.Timer):
    """Calls a function once this process ran for `interval` seconds."""

    def run(self) -> None:
        """Wait, and call it unless it was cancelled."""
        if not wait_awake(lambda left_s: self.finished.wait(left_s) or None, self.interval):
            self.function(*self.args, **self.kwargs)
        self.finished.set()
