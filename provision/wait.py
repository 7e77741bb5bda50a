"""Waiting for what takes a service minutes."""

from collections.abc import Callable
from typing import TypeVar

from provision.clock import Clock
from provision.errors import Blocked, CreateFailed, Throttled, Unclear
from provision.progress import Progress
from provision.provider import Say
from provision.retry import PollWaits

T = TypeVar("T")

MOST_LOOKS_APART_S = 15.0


def wait_until(
    what: str, look: Callable[[], tuple[T | None, str]], *, timeout_s: float, clock: Clock, say: Say
) -> T:
    """What `look` returns first, once it is not None; second is what it waits for, in a few words.

    Raises CreateFailed at the deadline, with the last of these words.
    """
    deadline = clock.now() + timeout_s
    waits = PollWaits()
    progress = Progress(clock, say)
    for_what = "nothing is known of it"
    while True:
        try:
            found, for_what = look()
        except (Throttled, Unclear) as error:
            found, for_what = None, str(error)
        if found is not None:
            return found
        if clock.now() > deadline:
            raise CreateFailed(
                f"{what} is not there after {timeout_s / 60:.0f} minutes: {for_what}. `gpuctl up` tries again, "
                "`gpuctl down` removes what is there."
            )
        progress.tell(f"waiting for {what}: {for_what}")
        clock.sleep(min(waits.next(), MOST_LOOKS_APART_S))


def once_unblocked(what: str, do: Callable[[], object], *, timeout_s: float, clock: Clock, say: Say) -> None:
    """Do what a service refuses while it does something else; `what` is there once it is done.

    Raises CreateFailed at the deadline, with the last refusal.
    """

    def look() -> tuple[bool | None, str]:
        try:
            do()
        except Blocked as error:
            return None, str(error)
        return True, ""

    wait_until(what, look, timeout_s=timeout_s, clock=clock, say=say)
