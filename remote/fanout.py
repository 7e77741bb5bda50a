"""Work on all nodes at once; every node's outcome is kept, so that one bad node doesn't hide the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from inventories.threads import MAX_AT_ONCE, Calls
from inventories.threads import values as all_values
from remote.errors import RemoteError, SomeNodesFailed
from remote.findings import named

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Value]):
    """The outcome of one node: a value, or the error."""

    node: str
    value: Value | None = None
    error: RemoteError | None = None


def fan_out(
    work: Callable[[Item], Value],
    items: Mapping[str, Item],
    *,
    at_once: int = MAX_AT_ONCE,
    discard: Callable[[Value], object] = lambda _: None,
) -> list[Outcome[Value]]:
    """`work` on every item in threads; outcomes in the items' order. Errors outside RemoteError are raised.

    The threads are daemons: an interrupt does not wait for hosts that do not answer. What has not begun then never
    begins; `discard` gets each unused value, also later ones.
    """

    def attempt(name: str) -> Outcome[Value]:
        try:
            return Outcome(node=name, value=work(items[name]))
        except RemoteError as error:
            return Outcome(node=name, error=error)

    def discard_value(outcome: Outcome[Value]) -> None:
        if outcome.value is not None:
            discard(outcome.value)

    calls = Calls(attempt, list(items), at_once=at_once, discard=discard_value)
    try:
        return all_values(calls.begin().outcomes())
    except BaseException:
        calls.cancel()
        raise


def values(outcomes: list[Outcome[Value]]) -> dict[str, Value]:
    """Return every node's value; raise the only error, or SomeNodesFailed with all errors."""
    errors = {outcome.node: outcome.error for outcome in outcomes if outcome.error is not None}
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        together: dict[str, list[str]] = {}  # errors with the same words once, with the names of all nodes
        for node, error in errors.items():
            together.setdefault(str(error).removeprefix(f"{node}: "), []).append(node)
        lines = "\n".join(
            f"  {named(nodes)}: {text}" if len(nodes) > 1 else f"  {errors[nodes[0]]}"
            for text, nodes in together.items()
        )
        statuses = {error.exit_status for error in errors.values()}
        raise SomeNodesFailed(
            f"{len(errors)} of {len(outcomes)} nodes failed:\n{lines}",
            exit_status=statuses.pop() if len(statuses) == 1 else 1,
        )
    return {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}
