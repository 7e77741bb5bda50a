"""The end of a cluster's time: which mechanisms act, and whether they are armed. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

from provision.cloud.records import CloudCluster, EndGuard, GuardName, PlannedEnd, ScheduledEnd
from provision.cloud.tags import read_time
from provision.provider_registry import describe

SCHEDULE: GuardName = "cloud schedule"
POWER_OFF: GuardName = "machine power-off"
LATEST = timedelta(minutes=1)
"""Longest time that a schedule may act after the end of the cluster's time: schedules know whole minutes."""
LONGEST_END = timedelta(minutes=30)
"""Longest time that machines take to end after their schedule has acted; bare metal takes longest."""


def ends_bill(cluster: CloudCluster) -> bool:
    """Whether a mechanism ends the bill of the cluster's machines, given a time limit."""
    timed = replace(cluster, expires_at=cluster.expires_at or datetime.now(UTC).isoformat(timespec="seconds"))
    return any(end.ends_bill for end in describe(cluster.target.provider).end_guards(timed))


def power_off_at(cluster: CloudCluster) -> str | None:
    """Return the time at which machines of the cluster power off, ISO 8601, UTC. None: never."""
    ends = describe(cluster.target.provider).end_guards(cluster)
    return next((end.at for end in ends if end.guard == POWER_OFF), None)


def not_scheduled(
    cluster: CloudCluster, schedules: Sequence[ScheduledEnd], machines: Collection[str]
) -> tuple[str, ...]:
    """Return the ids of the machines that no schedule terminates at the end of the cluster's time, in order."""
    assert cluster.expires_at is not None
    end = datetime.fromisoformat(cluster.expires_at)
    in_time = [schedule for schedule in schedules if _acts_in_time(schedule, end)]
    return tuple(sorted(set(machines).difference(*(schedule.machines for schedule in in_time))))


def guards(
    planned: Sequence[PlannedEnd],
    cluster: CloudCluster,
    schedules: Sequence[ScheduledEnd],
    machines: Collection[str],
    *,
    now: datetime,
    unreadable: str = "",
) -> tuple[EndGuard, ...]:
    """Return the planned mechanisms with their state, as the cloud's schedules show it.

    `machines`: ids of the machines that are not ended. `unreadable`: reason why the schedules could not be read. A
    schedule that was not planned counts where it covers all machines. The state of timers on the machines is not
    known here.
    """
    states = [EndGuard(**asdict(end), armed=None) for end in planned]
    bare = not_scheduled(cluster, schedules, machines)
    position = next((index for index, end in enumerate(planned) if end.guard == SCHEDULE), None)
    if position is None:
        if bare or not machines:
            return tuple(states)
        unplanned = PlannedEnd(guard=SCHEDULE, at=schedules[0].at, ends_bill=True)
        position, planned = 0, (unplanned, *planned)
        states.insert(0, EndGuard(**asdict(unplanned), armed=None))
    problem = unreadable
    if not unreadable and bare:
        problem = f"no schedule of the cloud ends {', '.join(bare)}"
    elif not unreadable and _is_late(cluster, now):
        problem = f"its time is over, and the cloud still lists {', '.join(sorted(machines))}"
    armed = None if unreadable else not problem
    states[position] = EndGuard(**asdict(planned[position]), armed=armed, problem=problem)
    return tuple(states)


def _is_late(cluster: CloudCluster, now: datetime) -> bool:
    """Whether the schedule should have ended all machines by now."""
    assert cluster.expires_at is not None
    return now > datetime.fromisoformat(cluster.expires_at) + LONGEST_END


def _acts_in_time(schedule: ScheduledEnd, end: datetime) -> bool:
    acts = read_time(schedule.at)
    return acts is not None and end <= acts <= end + LATEST
