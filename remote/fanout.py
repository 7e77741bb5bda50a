"""Work on all nodes at once; every node's outcome is kept, so that one bad node doesn't hide the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock, Semaphore, Thread
from typing import Generic, TypeVar

from remote.errors import RemoteError, SomeNodesFailed
from remote.findings import named

Item = TypeVar("Item")
Value = TypeVar("Value")

MAX_AT_ONCE = 32


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
    outcomes: dict[str, Outcome[Value]] = {}
    unexpected: list[Exception] = []
    places, lock, given_up = Semaphore(at_once), Lock(), False

    def run_item(name: str) -> None:
        try:
            with places:
                if given_up:
                    return
                outcome = Outcome(node=name, value=work(items[name]))
        except RemoteError as error:
            outcome = Outcome(node=name, error=error)
        except Exception as error:  # noqa: BLE001 - raised again below, in the caller's thread
            unexpected.append(error)
            return
        with lock:
            outcomes[name] = outcome
            late = given_up
        if late and outcome.value is not None:
            discard(outcome.value)

    threads = [
        Thread(target=run_item, args=(name,), daemon=True, name=f"fan out to {name}") for name in items
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if unexpected:
            raise unexpected[0]
    except BaseException:
        with lock:
            given_up = True
            arrived = list(outcomes.values())
        for outcome in arrived:
            if outcome.value is not None:
                discard(outcome.value)
        raise
    return [outcomes[name] for name in items]


def values(outcomes: list[Outcome[Value]]) -> dict[str, Value]:
    """Return every node's value; raise the only error, or SomeNodesFailed with all errors."""
    errors = {outcome.node: outcome.error for outcome in outcomes if outcome.error is not None}
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        lines = "\n".join(f"  {line}" for line in _alike_together(errors))
        statuses = {error.exit_status for error in errors.values()}
        raise SomeNodesFailed(
            f"{len(errors)} of {len(outcomes)} nodes failed:\n{lines}",
            exit_status=statuses.pop() if len(statuses) == 1 else 1,
        )
    return {outcome.node: outcome.value for outcome in outcomes if outcome.value is not None}


def _alike_together(errors: Mapping[str, RemoteError]) -> list[str]:
    """Return each node's error; errors with the same words once, with the names of all nodes."""
    together: dict[str, list[str]] = {}
    for node, error in errors.items():
        together.setdefault(str(error).removeprefix(f"{node}: "), []).append(node)
    return [
        f"{named(nodes)}: {text}" if len(nodes) > 1 else str(errors[nodes[0]])
        for text, nodes in together.items()
    ]
