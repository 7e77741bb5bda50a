"""Calls to a cloud in parallel: all outcomes are kept, as a failure must not hide the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")

MAX_WORKERS = 32


def run_all(
    function: Callable[[A], T], items: Sequence[A], *, max_workers: int = MAX_WORKERS
) -> list[T | Exception]:
    """Call `function` with each item, and return the results and errors in order once all calls are done.

    Ctrl-C is raised after the calls that have begun; the others don't begin.
    """

    def outcome(item: A) -> T | Exception:
        try:
            return function(item)
        except Exception as error:  # noqa: BLE001 - returned to the caller, who raises it
            return error

    if len(items) <= 1:
        return [outcome(item) for item in items]
    pool = ThreadPoolExecutor(max_workers=min(max_workers, len(items)))
    try:
        return list(pool.map(outcome, items))
    finally:
        pool.shutdown(cancel_futures=True)


def first_error(outcomes: Sequence[object]) -> Exception | None:
    """Return the first error among the outcomes. `None`: no error."""
    return next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)


def values(outcomes: Sequence[T | Exception]) -> list[T]:
    """Return the outcomes, or raise the first error among them."""
    results: list[T] = []
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
