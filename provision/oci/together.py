"""A few different calls side by side, each result in its place and of its own type."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from provision.parallel import run_all, values

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
def together(first: Callable[[], A], second: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def together(
    first: Callable[[], A], second: Callable[[], B], third: Callable[[], C], /
) -> tuple[A, B, C]: ...
def together(*jobs: Callable[[], Any]) -> tuple[Any, ...]:
    """What the jobs return. The first error is raised, once all are done."""
    return tuple(values(run_all(_do, jobs)))


def _do(job: Callable[[], Any]) -> Any:
    return job()
