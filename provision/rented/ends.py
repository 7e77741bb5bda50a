"""The end of a cluster's time: its mechanisms, and whether they are armed. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from provision.clouds import describe
from provision.pricing.spending import reap_command, ttl_text
from provision.records import CloudCluster, EndGuard, GuardName, PlannedEnd, ScheduledEnd, read_time

SCHEDULE: GuardName = "cloud schedule"
POWER_OFF: GuardName = "machine power-off"
IDLE: GuardName = "idle"
LATEST = timedelta(minutes=1)
"""Longest time that a schedule may act after the end of the cluster's time: schedules know whole minutes."""
LONGEST_END = timedelta(minutes=30)
"""Longest time that machines take to end after their schedule has acted; bare metal takes longest."""


def ends_bill(cluster: CloudCluster) -> bool:
    """Return whether a mechanism ends the bill of the cluster's machines, given a time limit."""
    timed = replace(cluster, expires_at=cluster.expires_at or datetime.now(UTC).isoformat(timespec="seconds"))
    return any(end.ends_bill for end in describe(cluster.target.provider).end_guards(timed))


def power_off_at(cluster: CloudCluster) -> str | None:
    """Return the time at which machines of the cluster power off, ISO 8601, UTC. `None`: never."""
    ends = describe(cluster.target.provider).end_guards(cluster)
    return next((end.at for end in ends if end.guard == POWER_OFF), None)


def planned_ends(cluster: CloudCluster) -> tuple[PlannedEnd, ...]:
    """Return the mechanisms that act at the end of the cluster's time, or after a time without use."""
    return (*describe(cluster.target.provider).end_guards(cluster), *idle_ends(cluster))


def idle_ends(cluster: CloudCluster) -> tuple[PlannedEnd, ...]:
    """Return the mechanism that acts after a time without use. Empty: the cluster has no `--idle`."""
    if cluster.idle_s is None:
        return ()
    ends = describe(cluster.target.provider).power_off_ends_bill
    return (PlannedEnd(guard=IDLE, at=None, ends_bill=ends),)


def idle_clause(cluster: CloudCluster) -> str:
    """Return a clause on the end after a time without use, and on the bill. Empty: the cluster has no `--idle`."""
    for end in idle_ends(cluster):
        after = f"after {ttl_text(cluster.idle_s or 0.0)} without use"
        if end.ends_bill:
            return f"{after} the machines shut down, which ends their bill"
        command = reap_command(cluster.target, "--idle")
        return (
            f"{after} `{command}` ends the machines and their bill: run it from cron on a computer with the files of "
            "this cluster, as the machines can't do that themselves"
        )
    return ""


def idle_settings(cluster: CloudCluster) -> dict[str, Any] | None:
    """Return the settings of the watch on the machines. `None`: the cluster has no `--idle`.

    A machine whose power-off ends no bill stays on, so that `gpuctl reap --idle` can ask it.
    """
    for end in idle_ends(cluster):
        return {"cluster": cluster.id, "idle_s": cluster.idle_s, "power_off": end.ends_bill}
    return None


def not_scheduled(
    cluster: CloudCluster, schedules: Sequence[ScheduledEnd], machines: Collection[str]
) -> tuple[str, ...]:
    """Return the ids of the machines that no schedule terminates at the end of the cluster's time, in order."""
    assert cluster.expires_at is not None
    end = datetime.fromisoformat(cluster.expires_at)
    # Not before the cluster's end, either.
    in_time = [
        schedule
        for schedule in schedules
        if (acts := read_time(schedule.at)) is not None and end <= acts <= end + LATEST
    ]
    return tuple(sorted(set(machines).difference(*(schedule.machines for schedule in in_time))))


def guards(
    planned: Sequence[PlannedEnd],
    cluster: CloudCluster,
    schedules: Sequence[ScheduledEnd],
    machines: Collection[str],
    *,
    late: Collection[str] = (),
    unreadable: str = "",
) -> tuple[EndGuard, ...]:
    """Return the planned mechanisms with their state, as the cloud's schedules show it.

    `machines`: ids of the machines that are alive. `late`: ids of those that should have ended. `unreadable`: reason
    why the schedules could not be read. An unplanned schedule counts if it covers all machines. The state of timers
    on the machines is not known here.
    """
    states = [EndGuard(**asdict(end), armed=None) for end in planned]
    bare = not_scheduled(cluster, schedules, machines)
    position = next((index for index, end in enumerate(planned) if end.guard == SCHEDULE), None)
    if position is None:
        if (bare or not machines) and not unreadable:
            return tuple(states)
        at = schedules[0].at if schedules else cluster.expires_at
        unplanned = PlannedEnd(guard=SCHEDULE, at=at, ends_bill=True)
        position, planned = 0, (unplanned, *planned)
        states.insert(0, EndGuard(**asdict(unplanned), armed=None))
    doubt = unreadable or next((schedule.problem for schedule in schedules if schedule.problem), "")
    problem = doubt
    if not unreadable and bare:
        problem, doubt = f"no schedule of the cloud ends {', '.join(bare)}", ""
    elif not unreadable and late:
        problem, doubt = f"its time is over, and the cloud still lists {', '.join(sorted(late))}", ""
    armed = None if doubt else not problem
    states[position] = EndGuard(**asdict(planned[position]), armed=armed, problem=problem)
    return tuple(states)


def is_late(cluster: CloudCluster, now: datetime) -> bool:
    """Return whether a schedule should have ended all machines by now."""
    assert cluster.expires_at is not None
    return now > datetime.fromisoformat(cluster.expires_at) + LONGEST_END
