"""Calls in threads: many at once, or one with a deadline that the system does not give it (a pipe, a name service).

All outcomes are returned, as a failure must not hide the others.
"""

import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event, Lock, Semaphore, Thread
from typing import Any, Generic, Self, TypeVar, overload

from inventories.clocks import awake_s, wait_awake

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Item = TypeVar("Item")
Value = TypeVar("Value")

MAX_AT_ONCE = 32
READ_S = 60.0
"""For a file that is a pipe: whoever writes into it has to be done by then."""


class Late(TimeoutError):
    """The call did not end before the deadline."""


class Calls(Generic[Item, Value]):
    """Calls of `work` with each item. The threads are daemons: a call that never ends keeps no command from ending.

    `deadline_s` begins with the calls. `discard` gets each value of a cancelled call.
    """

    def __init__(
        self,
        work: Callable[[Item], Value],
        items: Sequence[Item],
        *,
        at_once: int = MAX_AT_ONCE,
        deadline_s: float | None = None,
        discard: Callable[[Value], object] = lambda _: None,
    ) -> None:
        self._work = work
        self._items = items
        self._discard = discard
        self._places = Semaphore(at_once)
        self._lock = Lock()
        self._cancelled = False
        self._outcomes: dict[int, Value | BaseException] = {}
        # Thread.join is no use after a Ctrl-C: an interrupted one marks a thread that still runs as ended.
        self._ends: list[Event] = []
        self._limit = None if deadline_s is None else awake_s() + deadline_s

    def begin(self) -> Self:
        """Begin all calls."""
        for number, item in enumerate(self._items):
            ended = Event()
            self._ends.append(ended)
            try:
                Thread(
                    target=self._call, args=(number, item, ended), daemon=True, name=f"call {number}"
                ).start()
            except RuntimeError:  # the system has no thread left
                ended.set()
                raise
        return self

    def outcomes(self) -> list[Value | Exception]:
        """Return the values and errors in the items' order once all calls have ended, `Late` from the deadline on."""
        for ended in self._ends:
            if self._limit is None:
                ended.wait()
            else:
                wait_awake(partial(_ended_within, ended), self._limit - awake_s())
        outcomes: list[Value | Exception] = []
        for number in range(len(self._items)):
            outcome = self._outcomes.get(number, Late())
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
            outcomes.append(outcome)
        return outcomes

    def cancel(self) -> None:
        """Begin no other call, and discard the values: also of calls that end later."""
        with self._lock:
            self._cancelled = True
            arrived = list(self._outcomes.values())
        for outcome in arrived:
            self._drop(outcome)

    def join(self) -> None:
        """Wait until the calls that have begun have ended."""
        for ended in self._ends:
            ended.wait()

    def _call(self, number: int, item: Item, ended: Event) -> None:
        outcome: Value | BaseException
        try:
            with self._places:
                if self._cancelled:
                    return
                try:
                    outcome = self._work(item)
                except BaseException as error:  # noqa: BLE001 - returned, or raised again in the caller's thread
                    outcome = error
            with self._lock:
                self._outcomes[number] = outcome
                unused = self._cancelled
            if unused:
                self._drop(outcome)
        finally:
            ended.set()

    def _drop(self, outcome: Value | BaseException) -> None:
        if not isinstance(outcome, BaseException):
            self._discard(outcome)


def _ended_within(ended: Event, left_s: float) -> bool | None:
    return ended.wait(max(0.0, left_s)) or None


def run_all(
    work: Callable[[Item], Value], items: Sequence[Item], *, at_once: int = MAX_AT_ONCE
) -> list[Value | Exception]:
    """Call `work` with each item, and return the values and errors in order once all calls are done.

    Ctrl-C is raised after the calls that have begun; the others don't begin.
    """
    if len(items) == 1:
        try:
            return [work(items[0])]
        except Exception as error:  # noqa: BLE001 - returned to the caller, who raises it
            return [error]
    calls = Calls(work, items, at_once=at_once)
    try:
        return calls.begin().outcomes()
    finally:
        calls.cancel()
        calls.join()


def first_error(outcomes: Sequence[object]) -> Exception | None:
    """Return the first error among the outcomes. `None`: no error."""
    return next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)


def values(outcomes: Sequence[Value | Exception]) -> list[Value]:
    """Return the outcomes, or raise the first error among them."""
    results: list[Value] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        results.append(outcome)
    return results


@overload
def together(first: Callable[[], A], second: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def together(
    first: Callable[[], A], second: Callable[[], B], third: Callable[[], C], /
) -> tuple[A, B, C]: ...
def together(*jobs: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the results of a few jobs, each of its own type. Raises the first error once all are done."""
    return tuple(values(run_all(lambda job: job(), jobs)))


def within(seconds: float, do: Callable[[], Value], *, what: str) -> Value:
    """Call a function with a deadline, and return its result. Raises TimeoutError, which names `what`, if time is up.

    The function then continues in its own thread, which ends with the process.
    """
    outcomes = Calls(lambda _: do(), [None], deadline_s=seconds).begin().outcomes()
    if isinstance(outcomes[0], Late):
        raise TimeoutError(f"{what} within {seconds:.0f} s")
    return values(outcomes)[0]


def read_file(path: Path, max_bytes: int | None = None) -> bytes:
    """A file's bytes, `max_bytes` at most. Raises OSError, and TimeoutError for a pipe that stays open."""

    def read() -> bytes:
        with path.open("rb") as file:
            return file.read() if max_bytes is None else file.read(max_bytes)

    # A person may type into a terminal for as long as they like.
    if stat.S_ISFIFO(path.stat().st_mode) or stat.S_ISSOCK(path.stat().st_mode):
        return within(READ_S, read, what="it did not come to its end")
    return read()
