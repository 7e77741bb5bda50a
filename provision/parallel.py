"""Calls to a cloud, side by side: every item's outcome is kept, as one that fails must not hide the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")

MOST_AT_ONCE = 32


def run_all(
    function: Callable[[A], T], items: Sequence[A], *, most: int = MOST_AT_ONCE
) -> list[T | Exception]:
    """What `function` returned or raised for each item, in order; returns when all are done.

    Ctrl-C is raised once those that have begun are done; the others are not begun.
    """

    def outcome(item: A) -> T | Exception:
        try:
            return function(item)
        except Exception as error:  # noqa: BLE001 - returned to the caller, who raises it
            return error

    if len(items) <= 1:
        return [outcome(item) for item in items]
    pool = ThreadPoolExecutor(max_workers=min(most, len(items)))
    try:
        return list(pool.map(outcome, items))
    finally:
        pool.shutdown(cancel_futures=True)


def first_error(outcomes: Sequence[object]) -> Exception | None:
    """The first outcome that is an error."""
    return next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)


def values(outcomes: Sequence[T | Exception]) -> list[T]:
    """The outcomes where all went well; else the first error is raised."""
    found: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        found.append(outcome)
    return found


@overload
def together(first: Callable[[], A], second: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def together(
    first: Callable[[], A], second: Callable[[], B], third: Callable[[], C], /
) -> tuple[A, B, C]: ...
def together(*jobs: Callable[[], Any]) -> tuple[Any, ...]:
    """What a few different jobs return, each result of its own type. The first error is raised, once all are done."""
    return tuple(values(run_all(lambda job: job(), jobs)))
