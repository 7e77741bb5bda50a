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
    unreadable: str = "",
) -> tuple[EndGuard, ...]:
    """Return the planned mechanisms with their state, as the cloud's schedules tell it.

    `machines`: ids of those that are not ended. `unreadable`: why the schedules could not be read. A schedule that
    was not planned counts where it covers all machines. The state of what runs on the machines is not known here.
    """
    bare = not_scheduled(cluster, schedules, machines)
    states = [EndGuard(**asdict(end), armed=None, problem="") for end in planned]
    schedule = next((end for end in planned if end.guard == SCHEDULE), None)
    if schedule is None:
        if not schedules or bare or not machines:
            return tuple(states)
        end = PlannedEnd(guard=SCHEDULE, at=cluster.expires_at, ends_bill=True)
        return (EndGuard(**asdict(end), armed=True), *states)
    problem = unreadable or (f"no schedule of the cloud ends {', '.join(bare)}" if bare else "")
    armed = None if unreadable else not bare
    return tuple(
        EndGuard(**asdict(schedule), armed=armed, problem=problem) if state.guard == SCHEDULE else state
        for state in states
    )


def _acts_in_time(schedule: ScheduledEnd, end: datetime) -> bool:
    acts = read_time(schedule.at)
    return acts is not None and acts <= end + LATEST
