"""Waits on this computer's own side that the system gives no deadline: a pipe, another program, a name service."""

import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from inventories.clocks import join_awake

T = TypeVar("T")

READ_S = 60.0
"""For a file that is a pipe: whoever writes into it has to be done by then."""


def within(seconds: float, do: Callable[[], T], *, what: str) -> T:
    """Call a function with a deadline, and return its result. Raises TimeoutError, which names `what`, if time is up.

    The function then continues in its own thread, which ends with the process.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(do())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name=what)
    thread.start()
    join_awake(thread, seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"{what} within {seconds:.0f} s")
    return outcome[0]


def read(path: Path, most_bytes: int | None = None) -> bytes:
    """A file's bytes, `most_bytes` at most. Raises OSError, and TimeoutError for a pipe that stays open."""

    def do() -> bytes:
        with path.open("rb") as file:
            return file.read() if most_bytes is None else file.read(most_bytes)

    # A person may type into a terminal for as long as they like.
    if stat.S_ISFIFO(path.stat().st_mode) or stat.S_ISSOCK(path.stat().st_mode):
        return within(READ_S, do, what="it did not come to its end")
    return do()
