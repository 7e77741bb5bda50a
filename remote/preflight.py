"""What would fail or hang later fails here, before the launch, with the node and the fix."""

from collections.abc import Mapping
from dataclasses import dataclass

from inventories.machine import Machine
from remote.errors import PreflightFailed
from remote.facts import Facts

MIN_DISK_BYTES = 50 * 1000 * 1000
MAX_CLOCK_SKEW_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong on a node."""

    node: str
    problem: str
    fix: str
    fatal: bool = True


def findings(facts: Mapping[str, Facts], *, master: Machine) -> list[Finding]:
    """All that is wrong, by node. `master` is the node that hosts the rendezvous."""
    found: list[Finding] = []
    for name, fact in facts.items():
        if fact.torch is None:
            found.append(
                Finding(
                    node=name,
                    problem=f"torch is not installed for {fact.python} (Python {fact.python_version})",
                    fix=f"install it there ({fact.python} -m pip install torch), or name another one with --python",
                )
            )
        if fact.disk_free_bytes < MIN_DISK_BYTES:
            found.append(
                Finding(
                    node=name,
                    problem=f"the disk is full: {fact.disk_free_bytes / 1e6:.1f} MB free in {fact.home}",
                    fix=f"free at least {MIN_DISK_BYTES / 1e6:.0f} MB (gpuctl exec -- df -h), or use a larger disk",
                )
            )
        if fact.active_runs:
            found.append(
                Finding(
                    node=name,
                    problem=f"the run {fact.active_runs[0]} is still going on",
                    fix=f"wait for it (gpuctl logs -f {fact.active_runs[0]}), or end it: "
                    f"gpuctl stop {fact.active_runs[0]}",
                )
            )
        if abs(fact.clock_offset_s) > MAX_CLOCK_SKEW_S:
            found.append(
                Finding(
                    node=name,
                    problem=f"the clock is off by {fact.clock_offset_s:+.1f} s",
                    fix="check the time service there (timedatectl); times in logs will not line up",
                    fatal=False,
                )
            )
    found += _different(facts)
    if facts[master.name].free_port is None:
        found.append(
            Finding(
                node=master.name,
                problem=f"nothing can listen at {master.private_ip}, the address that the other nodes meet it at",
                fix="set private_ip in the inventory to an address of the machine itself (`ip addr` shows them)",
            )
        )
    return found


def _different(facts: Mapping[str, Facts]) -> list[Finding]:
    """Versions of torch that differ from the first node's: ranks would hang or disagree."""
    names = list(facts)
    first = facts[names[0]].torch
    if first is None:
        return []
    return [
        Finding(
            node=name,
            problem=f"torch is {facts[name].torch} here, and {first} on {names[0]}",
            fix="install the same version on all nodes",
        )
        for name in names[1:]
        if facts[name].torch not in (None, first)
    ]


def check(facts: Mapping[str, Facts], *, master: Machine) -> list[Finding]:
    """Raises PreflightFailed with every fatal finding; returns the others, to be shown."""
    found = findings(facts, master=master)
    fatal = [finding for finding in found if finding.fatal]
    if fatal:
        lines = "\n".join(f"  {finding.node}: {finding.problem}. Fix: {finding.fix}." for finding in fatal)
        raise PreflightFailed(f"The run can't start:\n{lines}")
    return [finding for finding in found if not finding.fatal]
