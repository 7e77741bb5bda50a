"""The state of a cluster that ends without use, from the answers of its machines."""

from datetime import UTC, datetime

import pytest

from gpuctl.workflow.machines.idle import idle_status, with_answers
from provision.records import EndGuard
from remote.checks.idle import SIGNALS, IdleState
from remote.errors import Unreachable
from remote.fanout import Outcome

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
NO_USE = dict.fromkeys(SIGNALS, False)
GUARD = EndGuard(guard="idle", at=None, ends_bill=True, armed=None)


def answer(number: int, **state: object) -> Outcome[IdleState]:
    return Outcome(node=f"gpu-{number}", value=IdleState(**{"running": True, "signals": NO_USE} | state))  # type: ignore[arg-type]


SILENT: Outcome[IdleState] = Outcome(node="gpu-1", error=Unreachable("gpu-1 does not answer."))


def test_cluster_is_in_use_where_a_machine_is_and_ends_with_the_last() -> None:
    answers = [
        answer(0, ends_in_s=600.0, signals=NO_USE | {"login": True, "gpu": None}),
        answer(1, ends_in_s=60.0, keep_s=30.0),
    ]
    status = idle_status(1800, answers, NOW)
    assert (status.ends_at, status.kept_until) == ("2026-12-01T12:10:00+00:00", "2026-12-01T12:00:30+00:00")
    assert status.signals == NO_USE | {"login": True, "gpu": None}
    guard = with_answers(GUARD, answers, status)
    assert (guard.armed, guard.at, guard.problem) == (True, status.ends_at, "")


@pytest.mark.parametrize(
    ("second", "armed", "problem"),
    [
        (SILENT, None, "no answer of gpu-1 (gpu-1 does not answer.)"),
        (answer(1, running=False), False, "the watch for use does not run on gpu-1"),
    ],
)
def test_end_is_not_known_without_every_machines_answer(second, armed, problem) -> None:
    answers = [answer(0, ends_in_s=600.0), second]
    status = idle_status(1800, answers, NOW)
    assert (status.ends_at, status.signals) == (None, dict.fromkeys(SIGNALS))
    guard = with_answers(GUARD, answers, status)
    assert (guard.armed, guard.problem) == (armed, problem)


def test_end_that_waits_for_unknown_use_is_not_armed() -> None:
    answers = [answer(0, ends_in_s=600.0, problems=("ss does not list the logins",))]
    guard = with_answers(GUARD, answers, idle_status(1800, answers, NOW))
    assert (guard.armed, guard.problem) == (False, "gpu-0 does not end: ss does not list the logins")
