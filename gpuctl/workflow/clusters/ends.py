"""The end of a cluster's time: its mechanisms with their state, and the warning if no mechanism ends the bill."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuctl.text import dollars
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from provision.pricing.spending import reap_command
from provision.provider import DAY_S, EndingProvider, Provider
from provision.records import EndGuard
from provision.rented.ends import IDLE, POWER_OFF
from provision.rented.state import CloudState

END_TIMERS = "end timers"
"""Event in a cluster's journal: `machines`, id → state of the timer that powers the machine off."""


def record_end_timers(folder: ClusterFolder, machines: Iterable[Machine], states: Mapping[str, str]) -> None:
    """Keep the states of the machines' timers, by name of the machine."""
    known = {machine.id: states[machine.name] for machine in machines if machine.name in states}
    if known:
        folder.journal.append(END_TIMERS, machines=known)


def ends_of(folder: ClusterFolder, provider: Provider, machines: Iterable[Machine]) -> tuple[EndGuard, ...]:
    """Return the mechanisms that end a cluster's machines, with their state. Empty: it has no time limit.

    The cloud is asked for its own; the machines' timers are as the last `up` found them. Raises CloudError.
    """
    if not isinstance(provider, EndingProvider):
        return ()
    alive = [machine for machine in machines if machine.state not in ("gone", "stopped")]
    return tuple(
        _with_timers(folder, guard, alive) if guard.guard == POWER_OFF else guard for guard in provider.ends()
    )


def is_relied_on(guard: EndGuard) -> bool:
    """Return whether the guard ends the bill: it is armed, or it is on machines that were not asked yet."""
    return guard.ends_bill and (guard.armed or (guard.armed is None and guard.guard in (IDLE, POWER_OFF)))


def warning(folder: ClusterFolder, ends: Iterable[EndGuard], hourly_usd: float | None) -> str:
    """Return a warning for a cluster with `--ttl` or `--idle` whose bill nothing ends. Empty: something may end it.

    The warning has the price of a day, and the line for cron that ends the machines in time.
    """
    record = CloudState(folder).load()
    if record is None:
        return ""
    price = "an unknown price" if hourly_usd is None else dollars(hourly_usd * DAY_S / 3600)
    if record.expires_at is None:
        if not any(guard.guard == IDLE and not guard.ends_bill for guard in ends):
            return ""
        return (
            f"Without use, only `gpuctl reap --idle` ends these machines and their bill ({price} a day), on a "
            "computer that is on and has the files of this cluster. Run this from cron: "
            f"`*/10 * * * * {_with_path(reap_command(record.target, '--idle'))}`."
        )
    ends = [guard for guard in ends if guard.guard != IDLE]
    if any(guard.ends_bill and guard.armed is not False for guard in ends):
        return ""
    reasons = [guard.problem for guard in ends if guard.ends_bill and guard.problem]
    return (
        f"Nothing in the cloud ends these machines at {record.expires_at}"
        f"{f' ({reasons[0]})' if reasons else ''}: they are billed, {price} a day, until `gpuctl down --cluster "
        f"{folder.name}`. To end them in time, run this from cron on a computer that is on: "
        f"`*/10 * * * * {_with_path(reap_command(record.target))}`."
    )


def _with_path(command: str) -> str:
    """Return a command of gpuctl with the program's path: cron does not look where a shell does."""
    return command.replace("gpuctl", shutil.which("gpuctl") or "gpuctl", 1)


def _with_timers(folder: ClusterFolder, guard: EndGuard, machines: Iterable[Machine]) -> EndGuard:
    """Return the guard of the machines' own power-off, as the last `up` found their timers."""
    states: dict[str, str] = {}
    for entry in folder.journal.read():
        if entry["event"] == END_TIMERS:
            states |= entry["machines"]
    idle = [machine.name for machine in machines if states.get(machine.id, "active") != "active"]
    if idle:
        return replace(guard, armed=False, problem=f"the timer does not run on {', '.join(idle)}")
    unknown = [machine.name for machine in machines if machine.id not in states]
    if unknown:
        return replace(guard, problem=f"the timer was not read on {', '.join(unknown)}")
    return replace(guard, armed=True)
