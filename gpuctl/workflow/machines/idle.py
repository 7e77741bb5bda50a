"""The end of machines after a time without use: their watches, asked all at once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from gpuctl.workflow.machines.cloud_record import cloud_record
from inventories.disk.store import ClusterFolder
from inventories.machine import Inventory, Machine

if TYPE_CHECKING:
    from gpuctl.command_results.clusters import IdleStatus
    from provision.records import EndGuard
    from remote.checks.idle import IdleState
    from remote.fanout import Outcome
    from remote.sessions.session import Node

    Answers: TypeAlias = Sequence[Outcome[IdleState]]


START_S = 600.0
"""Time in which the nodes of a run do not end for want of use, from its start on."""


def idle_s_of(folder: ClusterFolder, provider: str) -> float | None:
    """Return the time without use after which the cluster's machines end. `None`: they do not."""
    record = cloud_record(folder, provider)
    return record.idle_s if record else None


def ask_machines(
    folder: ClusterFolder, machines: Sequence[Machine], keep_s: float | None = None
) -> "Answers":
    """Return each machine's state of its watch, or the error. Names all machines to each other.

    `keep_s`: time in which they do not end. `None`: unchanged.
    """
    from remote.checks.idle import ask
    from remote.sessions.connect import ask_each

    return ask_each(lambda node: ask(node, _peers_of(node.machine, machines), keep_s), machines, folder)


def keep_for_start(folder: ClusterFolder, inventory: Inventory, nodes: "Mapping[str, Node]") -> list[str]:
    """Put the end off on the nodes of a run that is about to start. Returns sentences on nodes that did not.

    Between a look of the watch and the start of the ranks, a machine that was idle until now could end.
    """
    if idle_s_of(folder, inventory.provider) is None:
        return []
    from remote.checks.idle import ask
    from remote.fanout import fan_out

    machines = [machine for machine in inventory.machines if machine.state != "gone"]

    def keep(node: "Node") -> "IdleState":
        return ask(node, _peers_of(node.machine, machines), START_S, extends=True)

    answers = fan_out(keep, nodes)
    return [f"{each.node} may end for want of use: {each.error}" for each in answers if each.error]


def idle_status(after_s: float, answers: "Answers", now: datetime) -> "IdleStatus":
    """Return the cluster's state: in use where a machine is, and its end as that of the last machine."""
    from gpuctl.command_results.clusters import IdleStatus
    from remote.checks.idle import SIGNALS

    states = [outcome.value for outcome in answers if outcome.value is not None and outcome.value.running]
    known = bool(states) and len(states) == len(answers)
    keep_times = [state.keep_s for state in states if state.keep_s]
    signals = {  # `None`: no machine shows it, and one does not know
        name: True
        if any(state.signals[name] for state in states)
        else None
        if not known or any(state.signals[name] is None for state in states)
        else False
        for name in SIGNALS
    }
    return IdleStatus(
        after_s=after_s,
        signals=signals,
        ends_at=_time(now, max(state.ends_in_s for state in states)) if known else None,
        kept_until=_time(now, max(keep_times)) if keep_times else None,
    )


def with_answers(guard: "EndGuard", answers: "Answers", status: "IdleStatus") -> "EndGuard":
    """Return the guard `idle` with its state on the machines."""
    dead = [outcome.node for outcome in answers if outcome.value is not None and not outcome.value.running]
    silent = [f"{outcome.node} ({outcome.error})" for outcome in answers if outcome.error is not None]
    if dead:
        return replace(guard, armed=False, problem=f"the watch for use does not run on {', '.join(dead)}")
    unknown = [problem for outcome in answers for problem in unknown_use(outcome)]
    if unknown:
        return replace(guard, armed=False, problem="; ".join(unknown))
    if silent or not answers:
        return replace(guard, armed=None, problem=f"no answer of {', '.join(silent) or 'a machine'}")
    return replace(guard, armed=True, at=status.ends_at)


def running(machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines that can be asked: a stopped one neither shows use nor ends."""
    return [machine for machine in machines if machine.state not in ("gone", "stopped") and machine.host]


def unknown_use(answer: "Outcome[IdleState]") -> list[str]:
    """Return why a machine that answered does not know its use, which keeps the cluster."""
    problems = answer.value.problems if answer.value is not None else ()
    return [f"{answer.node} does not end: {problem}" for problem in problems]


def idle_state(
    folder: ClusterFolder, provider: str, machines: Sequence[Machine], guards: "tuple[EndGuard, ...] | None"
) -> "tuple[IdleStatus | None, tuple[EndGuard, ...] | None]":
    """Return the cluster's idle state, and the guards with it. `None`: the cluster has no `--idle`."""
    after_s = idle_s_of(folder, provider)
    alive = running(machines)
    if after_s is None or not alive:
        return None, guards
    from provision.rented.ends import IDLE

    answers = ask_machines(folder, alive)
    status = idle_status(after_s, answers, datetime.now(UTC))
    if guards is not None:
        guards = tuple(with_answers(each, answers, status) if each.guard == IDLE else each for each in guards)
    return status, guards


def _peers_of(machine: Machine, machines: Sequence[Machine]) -> list[str]:
    return [other.private_ip for other in machines if other.private_ip != machine.private_ip]


def _time(now: datetime, in_s: float) -> str:
    return (now + timedelta(seconds=in_s)).isoformat(timespec="seconds")
