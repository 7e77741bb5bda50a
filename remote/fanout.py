"""Work on all nodes at once; every node's outcome is kept, so that one bad node doesn't hide the others."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from remote.errors import RemoteError, SomeNodesFailed

Item = TypeVar("Item")
Value = TypeVar("Value")

MAX_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Value]):
    """What came of one node: a value, or the error."""

    node: str
    value: Value | None = None
    error: RemoteError | None = None


def fan_out(
    work: Callable[[Item], Value], items: Mapping[str, Item], *, at_once: int = MAX_AT_ONCE
) -> list[Outcome[Value]]:
    """`work` on every item in threads; outcomes in the items' order. Errors outside RemoteError are raised."""

    def one(name: str) -> Outcome[Value]:
        try:
            return Outcome(node=name, value=work(items[name]))
        except RemoteError as error:
            return Outcome(node=name, error=error)

    if len(items) <= 1:
        return [one(name) for name in items]
    with ThreadPoolExecutor(max_workers=min(at_once, len(items))) as pool:
        return list(pool.map(one, items))


def values(outcomes: list[Outcome[Value]]) -> dict[str, Value]:
    """Every node's value; raises the one error there is, or SomeNodesFailed with all of them."""
    errors = [outcome for outcome in outcomes if outcome.error is not None]
    if len(errors) == 1 and errors[0].error is not None:
        raise errors[0].error
    if errors:
        lines = "\n".join(f"  {outcome.error}" for outcome in errors)
        raise SomeNodesFailed(f"{len(errors)} of {len(outcomes)} nodes failed:\n{lines}")
    return {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
