"""When a call is made again, and for how long."""

import itertools
from collections.abc import Callable

import pytest
from clocks import StepClock

from provision.errors import Denied, Throttled, Unclear
from provision.retries import THROTTLED_FOR_S, UNCLEAR_FOR_S, Retry
from provision.waiting import Reminders, poll


def failing(times: int, error: Exception) -> tuple[Callable[[], str], list[int]]:
    """A call that fails so often first, and the list of its tries."""
    tries: list[int] = []

    def do() -> str:
        tries.append(len(tries))
        if len(tries) <= times:
            raise error
        return "done"

    return do, tries


@pytest.mark.parametrize("again", [True, False])
def test_retry_repeats_a_throttled_call(again: bool) -> None:
    do, tries = failing(4, Throttled("slow down"))
    assert Retry(clock=StepClock()).call(do, again=again) == "done"
    assert len(tries) == 5


def test_retry_repeats_an_unclear_call_only_when_allowed() -> None:
    do, tries = failing(2, Unclear("no reply"))
    assert Retry(clock=StepClock()).call(do, again=True) == "done"
    do, tries = failing(2, Unclear("no reply"))
    with pytest.raises(Unclear):
        Retry(clock=StepClock()).call(do, again=False)
    assert len(tries) == 1


@pytest.mark.parametrize(
    ("error", "budget_s"), [(Throttled("slow down"), THROTTLED_FOR_S), (Unclear("no reply"), UNCLEAR_FOR_S)]
)
def test_retry_stops_at_the_time_limit_of_each_error(error: Exception, budget_s: float) -> None:
    clock = StepClock()
    do, tries = failing(10**6, error)
    with pytest.raises(type(error)):
        Retry(clock=clock).call(do, again=True)
    assert budget_s * 0.5 < clock.time <= budget_s
    assert len(tries) < 60, "waits grow"


def test_retry_does_not_repeat_other_errors() -> None:
    do, tries = failing(1, Denied("no"))
    with pytest.raises(Denied):
        Retry(clock=StepClock()).call(do, again=True)
    assert len(tries) == 1


def test_polls_come_at_growing_intervals() -> None:
    clock = StepClock()
    passed_s = list(poll(clock, 1800))
    waits = [after - before for before, after in itertools.pairwise(passed_s)]
    assert (passed_s[0], waits[0]) == (0.0, 0.2)
    assert all(wait <= following + 1e-9 for wait, following in itertools.pairwise(waits))
    assert {round(wait, 6) for wait, before in zip(waits, passed_s, strict=False) if 10 < before < 40} == {
        5.0
    }
    assert all(wait <= max(5.0, before / 8) + 1e-9 for wait, before in zip(waits, passed_s, strict=False))
    assert 1800 < passed_s[-1] < 2100
    assert len(passed_s) <= 50


def test_reminders_come_due_at_growing_intervals() -> None:
    clock = StepClock()
    reminders = Reminders(clock)
    asked_at = []
    assert reminders.due(["b", "a"]) == ["a", "b"]
    while clock.time <= 1000:
        if reminders.due(["a"]):
            reminders.sent(["a"])
            asked_at.append(clock.time)
        clock.sleep(10)
    assert asked_at == [0, 30, 90, 210, 450, 930]
    assert reminders.due(["a", "b"]) == ["b"], "each has a time of its own"
