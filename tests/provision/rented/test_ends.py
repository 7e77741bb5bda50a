"""The mechanisms at the end of a cluster's time, with their state as the cloud's schedules show it."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from provision.records import CloudCluster, EndGuard, PlannedEnd, ScheduledEnd, Target
from provision.rented.ends import guards, idle_clause, idle_settings, is_late, not_scheduled, planned_ends

END = datetime.fromisoformat("2026-11-27T17:30:20+00:00")
MINUTE = "2026-11-27T17:31:00+00:00"
CLUSTER = CloudCluster(
    name="demo",
    id="1",
    owner="ann@desk",
    created_at="2026-11-27T13:30:00+00:00",
    target=Target(provider="oci", region="eu-frankfurt-1"),
    shape="VM.GPU.A10.2",
    expires_at=END.isoformat(),
)
SCHEDULE = PlannedEnd(guard="cloud schedule", at=CLUSTER.expires_at, ends_bill=True)
POWER_OFF = PlannedEnd(guard="machine power-off", at=MINUTE, ends_bill=False)
BOTH = frozenset({"a", "b"})
FULL = ScheduledEnd(at=MINUTE, machines=BOTH)


def schedule_of(found: tuple[EndGuard, ...]) -> tuple[bool | None, str]:
    (guard,) = [guard for guard in found if guard.guard == "cloud schedule"]
    return guard.armed, guard.problem


@pytest.mark.parametrize(
    ("schedules", "bare"),
    [
        ((), ("a", "b")),
        ((FULL,), ()),
        ((replace(FULL, machines=frozenset({"b"})),), ("a",)),
        ((replace(FULL, machines=frozenset({"b"})), replace(FULL, machines=frozenset({"a"}))), ()),
        ((replace(FULL, at="2026-11-27T17:30:00+00:00"),), ("a", "b")),
        ((replace(FULL, at="2026-11-27T17:32:00+00:00"),), ("a", "b")),
        ((replace(FULL, at="soon"),), ("a", "b")),
    ],
)
def test_machine_counts_as_scheduled_in_the_minute_after_the_end_alone(
    schedules: tuple[ScheduledEnd, ...], bare: tuple[str, ...]
) -> None:
    assert not_scheduled(CLUSTER, schedules, BOTH) == bare


def test_guard_is_armed_where_a_schedule_covers_all_machines() -> None:
    result = guards((SCHEDULE, POWER_OFF), CLUSTER, (FULL,), BOTH)
    assert [guard.guard for guard in result] == ["cloud schedule", "machine power-off"]
    assert schedule_of(result) == (True, "")
    assert result[1].armed is None


def test_guard_names_machines_without_a_schedule() -> None:
    result = guards((SCHEDULE,), CLUSTER, (), BOTH)
    assert schedule_of(result) == (False, "no schedule of the cloud ends a, b")


def test_guard_whose_schedule_could_not_be_read_is_not_known() -> None:
    result = guards((SCHEDULE,), CLUSTER, (), BOTH, unreadable="no answer")
    assert schedule_of(result) == (None, "no answer")


def test_schedule_that_was_not_planned_counts_where_it_covers_all() -> None:
    assert schedule_of(guards((POWER_OFF,), CLUSTER, (FULL,), BOTH)) == (True, "")
    half = replace(FULL, machines=frozenset({"a"}))
    result = guards((POWER_OFF,), CLUSTER, (half,), BOTH)
    assert [guard.guard for guard in result] == ["machine power-off"]


def test_guard_that_did_not_act_in_time_is_not_armed() -> None:
    result = guards((SCHEDULE,), CLUSTER, (FULL,), BOTH, late=["a", "b"])
    assert schedule_of(result) == (False, "its time is over, and the cloud still lists a, b")
    assert not is_late(CLUSTER, END + timedelta(minutes=29))
    assert is_late(CLUSTER, END + timedelta(minutes=31))


def test_guard_of_a_pool_that_is_scaling_is_not_known() -> None:
    result = guards((SCHEDULE,), CLUSTER, (replace(FULL, problem="the pool is SCALING"),), BOTH)
    assert schedule_of(result) == (None, "the pool is SCALING")


def test_schedule_that_could_not_be_read_is_shown_also_where_it_was_not_planned() -> None:
    result = guards((POWER_OFF,), CLUSTER, (), BOTH, unreadable="no answer")
    assert schedule_of(result) == (None, "no answer")


@pytest.mark.parametrize(("provider", "ends_bill"), [("aws", True), ("oci", False)])
def test_idle_machines_power_off_where_that_ends_their_bill(provider, ends_bill):
    unused = replace(
        CLUSTER, target=replace(CLUSTER.target, provider=provider), expires_at=None, idle_s=1800.0
    )
    assert planned_ends(unused) == (PlannedEnd(guard="idle", at=None, ends_bill=ends_bill),)
    assert idle_settings(unused) == {"cluster": "1", "idle_s": 1800.0, "power_off": ends_bill}
    assert idle_settings(replace(unused, idle_s=None)) is None
    clause = idle_clause(unused)
    assert clause.startswith("after 30m without use")
    assert ("`gpuctl reap --idle --yes --provider oci" in clause) is not ends_bill
    timed = replace(unused, expires_at=CLUSTER.expires_at)
    assert [end.guard for end in planned_ends(timed)][-1] == "idle"
