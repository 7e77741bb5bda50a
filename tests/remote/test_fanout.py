"""Test parallel work on all nodes, when interrupted and when it fails."""

import os
import signal
from threading import Event

import pytest
from support import wait_for

from remote.errors import RemoteError, SomeNodesFailed, SyncRefused, Unreachable
from remote.fanout import Outcome, fan_out, values


def test_outcomes_keep_the_order_and_every_error() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise Unreachable("node 2: no answer")
        return item * 10

    outcomes = fan_out(work, {"c": 3, "b": 2, "a": 1}, at_once=1)
    assert [(o.node, o.value, str(o.error or "")) for o in outcomes] == [
        ("c", 30, ""),
        ("b", None, "node 2: no answer"),
        ("a", 10, ""),
    ]
    with pytest.raises(Unreachable):
        values(outcomes)


def test_error_that_nodes_share_is_told_once() -> None:
    errors = {"n-0": "n-0: full", "n-1": "n-1: full", "n-2": "n-2: slow", "n-3": "no answer"}
    outcomes = [Outcome[int](node=name, error=RemoteError(text)) for name, text in errors.items()]
    with pytest.raises(SomeNodesFailed) as raised:
        values(outcomes)
    assert str(raised.value) == "4 of 4 nodes failed:\n  n-0 and n-1: full\n  n-2: slow\n  no answer"


@pytest.mark.parametrize(
    ("errors", "status"), [((SyncRefused, SyncRefused), 2), ((SyncRefused, Unreachable), 1)]
)
def test_errors_of_nodes_have_the_exit_status_that_all_share(
    errors: tuple[type[RemoteError], ...], status: int
) -> None:
    with pytest.raises(SomeNodesFailed) as raised:
        values([Outcome[int](node=str(n), error=error("no")) for n, error in enumerate(errors)])
    assert raised.value.exit_status == status


def test_interrupt_discards_what_came_and_what_comes_later_and_begins_nothing_more() -> None:
    early, interrupted, begun, discarded = Event(), Event(), [], set()

    def work(item: str) -> str:
        begun.append(item)
        if item == "early":
            early.set()
        elif item == "late":
            assert early.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted.wait(30)
        return item

    with pytest.raises(KeyboardInterrupt):
        fan_out(work, {item: item for item in ("early", "late", "never")}, at_once=1, discard=discarded.add)
    assert discarded == {"early"}
    interrupted.set()
    wait_for(lambda: discarded == {"early", "late"}, what="the late value")
    assert begun == ["early", "late"]


def test_unexpected_error_discards_the_values_of_the_others() -> None:
    discarded = []
    with pytest.raises(ZeroDivisionError):
        fan_out(lambda item: 1 // item, {"a": 1, "b": 0}, discard=discarded.append)
    assert discarded == [1]
