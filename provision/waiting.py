"""Time and polls: all waits for a state of a cloud.

The clock is a parameter everywhere, so that a simulation can run on a faster one.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from inventories.clocks import awake_s
from provision.errors import Blocked, CloudError, CreateFailed, Throttled, Unclear

T = TypeVar("T")

LONG_SHARE = 1 / 8
CLOSE_SHARE = 1 / 20
"""Share for a state on which a user waits to continue."""
MAX_POLL_S = 15.0
FIRST_REMINDER_S = 30.0
PROGRESS_S = 15.0

Say = Callable[[str], None]
"""Takes one line of progress for people."""


def quiet(line: str) -> None:
    """Drop the line."""


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Return the seconds since some moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""


class SystemClock:
    """The clock of this computer."""

    def now(self) -> float:
        """Return the seconds since some moment; never goes back."""
        return awake_s()

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        time.sleep(seconds)


def poll(
    clock: Clock,
    timeout_s: float = math.inf,
    *,
    first_s: float = 0.2,
    longest_s: float = 5.0,
    share: float = LONG_SHARE,
    max_s: float = math.inf,
) -> Iterator[float]:
    """Yield the seconds since the begin before each poll of a state, and sleep between the polls.

    Waits grow by half from `first_s` to `longest_s`, in the long run to a `share` of the time that has passed, up to
    `max_s`: with an eighth, half an hour takes some fifty polls. Ends after the first poll past `timeout_s`, so the
    code after the loop handles the deadline.
    """
    began = clock.now()
    passed_s = slept_s = 0.0
    while True:
        yield passed_s
        if clock.now() - began > timeout_s:
            return
        wait_s = max(first_s, slept_s * share)
        first_s = min(first_s * 1.5, longest_s)
        slept_s += wait_s
        clock.sleep(min(wait_s, max_s))
        passed_s = clock.now() - began


def first_result(clock: Clock, read: Callable[[], T | None], timeout_s: float) -> T | None:
    """Return the first result of `read` that is not `None`. `None`: the deadline passed."""
    for _ in poll(clock, timeout_s):
        result = read()
        if result is not None:
            return result
    return None


def retry_while(
    clock: Clock, do: Callable[[], T], transient: Callable[[CloudError], bool], timeout_s: float
) -> T:
    """Call `do` until it returns, or raises an error that is not `transient`, or the deadline has passed."""
    deadline = clock.now() + timeout_s
    for _ in poll(clock):
        try:
            return do()
        except CloudError as error:
            if not transient(error) or clock.now() > deadline:
                raise
    raise AssertionError("polls without a deadline do not end")


@dataclass(frozen=True)
class Reminders:
    """The times to repeat a request without effect: after 30 s, then each time after twice as long."""

    clock: Clock
    _due: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Time of the next request by id, and the wait after it."""

    def due(self, ids: Iterable[str]) -> list[str]:
        """Return the ids to send a request for now, in order."""
        now = self.clock.now()
        return sorted(name for name in ids if name not in self._due or self._due[name][0] <= now)

    def sent(self, ids: Iterable[str]) -> None:
        """Note that the service took a request for these ids."""
        for name in ids:
            wait_s = self._due[name][1] if name in self._due else FIRST_REMINDER_S
            self._due[name] = (self.clock.now() + wait_s, wait_s * 2)


class Progress:
    """A line of progress at most every `every_s`, and no line for a shorter wait."""

    def __init__(self, clock: Clock, say: Say, *, every_s: float = PROGRESS_S) -> None:
        self._clock = clock
        self._say = say
        self._every_s = every_s
        self._began = clock.now()
        self._next = self._began + every_s

    def tell(self, state: str) -> None:
        """Say the state and the seconds so far, if a line is due."""
        now = self._clock.now()
        if now >= self._next:
            self._next = now + self._every_s
            self._say(f"{state} ({now - self._began:.0f} s)")


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Waits for resources of a cluster, with lines of progress."""

    clock: Clock
    say: Say = quiet

    def wait_until(self, title: str, read: Callable[[], tuple[T | None, str]], timeout_s: float) -> T:
        """Wait for the first result of `read` that is not `None`, and return it.

        `title` begins messages: name of the resource. `read` returns the result, or `None` with the reason as a
        clause. Raises CreateFailed at the deadline, with the last reason.
        """
        progress = Progress(self.clock, self.say)
        reason = "nothing is known of it"
        for _ in poll(self.clock, timeout_s, max_s=MAX_POLL_S):
            try:
                result, reason = read()
            except (Throttled, Unclear) as error:
                result, reason = None, str(error)
            if result is not None:
                return result
            progress.tell(f"waiting for {title}: {reason}")
        raise CreateFailed(
            f"{title} is not there after {timeout_s / 60:.0f} minutes: {reason}. `gpuctl up` tries again, "
            "`gpuctl down` removes what is there."
        )

    def once_unblocked(self, title: str, do: Callable[[], object], timeout_s: float) -> None:
        """Call `do` until the service does not block it any more for another change.

        Raises:
            CreateFailed: at the deadline, with the last refusal. `title` is the begin of its message.
        """

        def read() -> tuple[bool | None, str]:
            try:
                do()
            except Blocked as error:
                return None, str(error)
            return True, ""

        self.wait_until(title, read, timeout_s)
